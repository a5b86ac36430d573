"""Environments of people's own classes, killed for real and taken up again in a new process.

What the killed process saw after its last checkpoint, and what the one that took over saw there, has to be
the same, byte for byte; that holds for an environment too whose generator nobody has seeded.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unbroken
from unbroken.capture.environments import How, Verdict
from unbroken.capture.probe import probe
from unbroken.capture.tape import Witness
from unbroken.types import Fidelity

WORLDS = Path(__file__).parent / "worlds"
sys.path.insert(0, str(WORLDS))
try:
    plain: Any = importlib.import_module("plain")
finally:
    sys.path.remove(str(WORLDS))

EVERY = 5
FIRST_EPISODE, LATER = 8, 39


def play(name: str, root: Path, log: Path, kill_at: int = -1) -> None:
    """Step through an environment under `Run` and write down what it answers, until the end or a kill."""
    env = getattr(plain, name)()
    env.reset(seed=4)
    with log.open("a", buffering=1) as lines:
        run = unbroken.Run(root, every=EVERY, quiet=True)
        run.track(env=env)
        for step in run.steps(60):
            run.wait()  # where a run goes on from must not depend on the machine's load
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            witness = Witness()
            result = env.step((step * 7) % 3 % 2)
            witness.see(*result[:4])
            if result[2] or result[3]:
                witness.see(env.reset()[0])
            lines.write(json.dumps([step, witness.hexdigest()]) + "\n")


def in_a_process(act: Callable[[], None], problem: Path) -> int:
    """Run `act` in a process of its own and return how it ended."""
    child = os.fork()
    if not child:
        try:
            act()
        except BaseException:  # noqa: BLE001 - told, and the child ends
            problem.write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def seen(log: Path) -> dict[int, str]:
    return dict(map(json.loads, log.read_text().splitlines()))


def killed_and_taken_up(name: str, at: int, folder: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Return what the killed process saw, and what the one saw that went on, each by step."""
    root, problem = folder / "run", folder / "problem"
    before, after = folder / "before", folder / "after"
    assert in_a_process(lambda: play(name, root, before, at), problem) == -signal.SIGKILL, problem.read_text()
    assert in_a_process(lambda: play(name, root, after), problem) == 0, problem.read_text()
    return seen(before), seen(after)


@pytest.mark.parametrize("at", [FIRST_EPISODE, LATER])
@pytest.mark.parametrize("name", [make.__name__ for make in plain.EXACT])
def test_a_plain_environment_goes_on_where_it_was(name: str, at: int, tmp_path: Path) -> None:
    before, after = killed_and_taken_up(name, at, tmp_path)
    both = before.keys() & after.keys()
    assert len(both) == at % EVERY
    assert {step: before[step] for step in both} == {step: after[step] for step in both}
    assert sorted(before.keys() | after.keys()) == list(range(60))


@pytest.mark.parametrize("name", ["GlobalGenerators", "wrapped"])
def test_it_ends_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = [{str(WORLDS)!r}, {str(Path(__file__).parent)!r}]
import random, numpy
random.seed(1), numpy.random.seed(1)
from pathlib import Path
from test_plain_environments import play
play({name!r}, Path(sys.argv[1]) / "run", Path(sys.argv[1]) / sys.argv[2], int(sys.argv[3]))
"""

    def run(folder: Path, log: str, kill_at: int) -> int:
        folder.mkdir(exist_ok=True)
        arguments = [sys.executable, "-c", script, str(folder), log, str(kill_at)]
        environment = {**os.environ, "PYTHONHASHSEED": str(kill_at + 1)}
        return subprocess.run(arguments, env=environment, check=False).returncode

    assert run(tmp_path / "U", "log", -1) == 0
    assert run(tmp_path / "R", "one", FIRST_EPISODE) == -signal.SIGKILL
    assert run(tmp_path / "R", "two", LATER) == -signal.SIGKILL
    assert run(tmp_path / "R", "three", -1) == 0
    parts = [seen(tmp_path / "R" / log) for log in ("one", "two", "three")]
    assert {**parts[0], **parts[1], **parts[2]} == seen(tmp_path / "U" / "log")


@pytest.mark.parametrize("make", plain.EXACT)
def test_its_attributes_are_all_there_is(make: Callable[[], Any]) -> None:
    assert probe(make()) == Verdict(How.STRUCTURAL)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("OnTheClass", "plain.OnTheClass.total"),
        ("OnTheModule", "plain._moves"),
        ("InAList", "plain._history"),
        ("SpaceOnTheModule", "the next draw from action_space differs"),
        ("SpaceOnTheModule", "plain._choices"),
        ("InAnotherModule", "counting.steps"),
        ("InItsRobotsClass", "plain.InItsRobotsClass.Arm.turns"),
        ("in_a_closure", "<count>"),
        ("ReadsTheClock", "reads the clock (in plain)"),
        ("ReadsTheDate", "reads the clock (in plain)"),
        ("Raises", "no physics today"),
    ],
)
def test_what_stands_elsewhere_is_named(name: str, where: str) -> None:
    env = getattr(plain, name)()
    verdict = probe(env)
    assert verdict.how is How.STRUCTURAL
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert where in verdict.reason


def test_the_live_environment_and_its_module_are_not_touched() -> None:
    env = plain.OnTheModule()
    env.reset(seed=1)
    before = dict(vars(env)), env.np_random.bit_generator.state, plain._moves
    probe(env)
    assert (dict(vars(env)), env.np_random.bit_generator.state, plain._moves) == before


def test_an_environment_that_writes_files_is_not_tried_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain.WritesAFile, "path", str(tmp_path / "log"))
    verdict = probe(plain.WritesAFile())
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert str(tmp_path / "log") in verdict.reason
    assert list(tmp_path.iterdir()) == []


def test_one_that_never_answers_costs_the_timeout() -> None:
    verdict = probe(plain.NeverAnswers(), timeout=0.5)
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "longer than 0.5 s" in verdict.reason


def test_where_no_process_can_be_copied_nobody_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    verdict = probe(plain.Plain())
    assert verdict.how is How.STRUCTURAL
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "cannot copy a process" in verdict.reason


@pytest.mark.parametrize("name", ["Hidden", "HiddenWithMemory"])
def test_physics_out_of_reach_is_replayed_with_the_values_beside_it(name: str, tmp_path: Path) -> None:
    assert probe(getattr(plain, name)()) == Verdict(How.REPLAY)
    before, after = killed_and_taken_up(name, LATER, tmp_path)
    both = before.keys() & after.keys()
    assert len(both) == LATER % EVERY
    assert {step: before[step] for step in both} == {step: after[step] for step in both}


def test_killed_in_its_first_episode_it_starts_again(tmp_path: Path) -> None:
    before, after = killed_and_taken_up("Hidden", FIRST_EPISODE, tmp_path)
    assert sorted(before.keys() | after.keys()) == list(range(60))


def test_an_object_that_a_replay_would_lose_is_named(tmp_path: Path) -> None:
    verdict = probe(plain.HiddenWithRobot())
    assert (verdict.how, verdict.fidelity) == (How.REPLAY, Fidelity.APPROXIMATE)
    assert "robot/miles" in verdict.reason
    _, after = killed_and_taken_up("HiddenWithRobot", LATER, tmp_path)
    assert max(after) == 59


def train(name: str, folder: Path, out: str, kill_at: int = -1) -> None:
    """Train as people do, the environment given as an object, and write down the weights."""
    import random

    import numpy as np
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    from unbroken.sb3 import CheckpointCallback

    class Killer(BaseCallback):
        def _on_step(self) -> bool:
            session: Any = ours._session
            if 0 <= kill_at - 7 <= self.n_calls:
                session._engine.wait()  # so that the newest checkpoint is at most five steps old
            if self.n_calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return True

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the environment draws from it
    model = PPO(
        "MlpPolicy", getattr(plain, name)(), n_steps=32, batch_size=32, n_epochs=1, device="cpu", seed=0
    )
    ours = CheckpointCallback(5, folder / "run")
    model.learn(64, callback=[ours, Killer()])
    weights = {key: value.numpy().tobytes().hex() for key, value in model.policy.state_dict().items()}
    (folder / out).write_text(json.dumps(weights))


@pytest.mark.parametrize("name", ["GlobalGenerators", "HiddenWithMemory"])
def test_a_training_on_it_ends_as_the_undisturbed_one(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("stable_baselines3")
    folders = tmp_path / "U", tmp_path / "R"
    problem = tmp_path / "problem"
    for folder in folders:
        folder.mkdir()
    kills = [25, 45] if name == "HiddenWithMemory" else [FIRST_EPISODE, 40]
    assert in_a_process(lambda: train(name, folders[0], "end"), problem) == 0, problem.read_text()
    for at in kills:
        died = in_a_process(lambda at=at: train(name, folders[1], "end", at), problem)  # type: ignore[misc]
        assert died == -signal.SIGKILL, problem.read_text()
    assert in_a_process(lambda: train(name, folders[1], "end"), problem) == 0, problem.read_text()
    assert (folders[1] / "end").read_text() == (folders[0] / "end").read_text()
    assert ("approximate" in capfd.readouterr().err) == (name == "HiddenWithMemory")  # in its first episode
