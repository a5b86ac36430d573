"""A trial of a restored policy in fresh processes: it can reject a checkpoint, and changes nothing of the training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from tests.adapters.sb3.trainings import dqn, weights
from unbroken.capture.hooks import Hook
from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback, WarmUp

SCRIPT = Path(__file__).with_name("warm_up_script.py")


def script(root: Path, *, kill: int = 0, mode: str = "plain", least: float = 0.0) -> list[str]:
    """Run the script; return what it has printed, nothing where it was killed."""
    done = subprocess.run(  # noqa: PLW1510 - the status is looked at
        [sys.executable, SCRIPT, root, str(kill), mode, str(least)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TMPDIR": str(root.parent)},
    )
    assert done.returncode == (-9 if kill else 0), done.stderr
    return done.stdout.splitlines()


def damage_newest(root: Path) -> None:
    """Flip a bit of the newest checkpoint."""
    commit = Repository.open(root, "rl_model").commits()[0]
    victim = root / "rl_model" / commit.directory / "policy_weights.json"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))


def whole(root: Path) -> list[str]:
    """Return the steps of the checkpoints before the newest, which are whole. How many there are is the disk's matter."""
    return [str(commit.step) for commit in Repository.open(root, "rl_model").commits()[1:]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its middle, and whose newest checkpoint is damaged."""
    root = tmp_path_factory.mktemp("killed") / "runs"
    assert script(root, kill=250) == []
    damage_newest(root)
    return root


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return script(tmp_path_factory.mktemp("undisturbed") / "runs")[0].split()[0]


def test_a_trial_in_the_trainings_own_environments_changes_nothing(
    killed: Path, undisturbed: str, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(killed, tmp_path / "runs"))
    step = whole(root)[0]
    first, *reasons = script(root, mode="trial")
    assert first.split() == [undisturbed, step, "older", "True"]
    assert int(step) > 0
    assert len(reasons) == 1


def test_the_same_episodes_left_in_the_training_change_its_end(
    killed: Path, undisturbed: str, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(killed, tmp_path / "runs"))
    expected = whole(root)[0]
    digest, step, *_ = script(root, mode="untidy")[0].split()
    assert step == expected
    assert digest != undisturbed


def test_a_policy_below_the_least_reward_is_passed_over_with_its_reward(killed: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(killed, tmp_path / "runs"))
    done = subprocess.run(  # noqa: PLW1510 - the status is looked at
        [sys.executable, SCRIPT, root, "0", "trial", "501"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1, "no policy gets more than 500 out of this environment"
    assert done.stderr.count("the warm-up evaluation rejects it: a mean reward of") == len(whole(root))
    assert "and 501 is the least" in done.stderr
    assert script(root)[0].split()[1:3] == [whole(killed)[0], "older"], "nothing was touched"


class Stop(Exception):
    pass


class StopAt(BaseCallback):
    """Ends a training at a step, and keeps what stood in the place of the buffer's `add` there."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.add: object = None

    def _on_step(self) -> bool:
        if self.num_timesteps == self.at:
            self.add = vars(self.model.replay_buffer).get("add")  # type: ignore[attr-defined]
            raise Stop
        return True


def test_after_a_trial_what_a_replay_buffer_gets_is_counted_as_before_and_saved(tmp_path: Path) -> None:
    """The second restore puts back what the first has found. Our hook on the buffer is not of the training, and stays."""
    undisturbed = dqn().learn(200)
    hooks: list[object] = []
    for at, always in ((100, False), (150, True)):
        stop = StopAt(at)
        trial = WarmUp(episodes=1, always=always)
        with pytest.raises(Stop):
            dqn().learn(200, callback=[CheckpointCallback(20, tmp_path, warm_up=trial), stop])
        hooks.append(stop.add)
    assert [isinstance(hook, Hook) for hook in hooks] == [True, True]
    resumed = dqn().learn(200, callback=CheckpointCallback(20, tmp_path))
    assert weights(resumed) == weights(undisturbed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"episodes": 0}, "at least one episode"),
        ({"episodes": 2.5}, "at least one episode"),
        ({"least": float("nan")}, "must be a mean reward"),
        ({"least": "much"}, "must be a mean reward"),
    ],
)
def test_a_warm_up_that_means_nothing_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WarmUp(**options)  # type: ignore[arg-type]


def test_the_callback_takes_nothing_else_for_a_warm_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a WarmUp"):
        CheckpointCallback(10, tmp_path, warm_up=lambda: True)  # type: ignore[arg-type]
