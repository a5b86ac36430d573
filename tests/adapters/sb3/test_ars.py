"""ARS, whose loop is another: saved between two updates."""

from __future__ import annotations

from pathlib import Path

import pytest
from stable_baselines3.common.logger import Logger

from unbroken.adapters.sb3 import session
from unbroken.adapters.sb3.policy import HOOKS
from unbroken.errors import ConfigError
from unbroken.sb3 import CheckpointCallback

from . import asked_script
from .asked import Case, Interpreter, check, three_runs

CASES = [
    Case("ars", 4000, 900, ("generators",), None, {"save_freq": 200, "grace": 1e9}),
    Case("ars", 4000, 900, ("generators",), 1704),
]


@pytest.mark.parametrize("case", CASES, ids=["by its interval", "asked for inside an update"])
def test_a_killed_run_of_ars_ends_as_the_undisturbed_one(
    case: Case, first: Interpreter, second: Interpreter, tmp_path: Path
) -> None:
    outcome = three_runs(case, first, second, tmp_path)
    check(outcome, case)
    undisturbed, in_two = outcome.rows
    assert in_two[-5:] == undisturbed[-5:], "updates are counted on, and logged at the same ones"


def test_processes_that_cannot_be_saved_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    model = asked_script.ars()[0]
    before = asked_script.weights(model)

    class Elsewhere:
        remotes = (None,)

        def close(self) -> None: ...

    with pytest.raises(ConfigError, match="async_eval") as raised:
        model.learn(1000, callback=CheckpointCallback(100, tmp_path), async_eval=Elsewhere())
    assert "SubprocVecEnv" in str(raised.value)
    assert not list(tmp_path.iterdir())
    assert asked_script.weights(model) == before
    assert not [name for name in HOOKS if name in vars(model)]


def test_a_finished_run_of_ars_says_so_and_trains_and_logs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session._finished.clear()
    model, _ = asked_script.ars()
    model.learn(300, callback=CheckpointCallback(100, tmp_path))
    end = asked_script.weights(model)
    session._finished.clear()  # as in another process
    again, _ = asked_script.ars()
    again.set_logger(Logger(folder=None, output_formats=[asked_script.Rows(str(tmp_path / "rows"))]))
    capsys.readouterr()
    again.learn(300, callback=CheckpointCallback(100, tmp_path))
    assert asked_script.weights(again) == end
    assert again.num_timesteps == model.num_timesteps
    assert not (tmp_path / "rows").exists()
    assert "finished" in capsys.readouterr().err
