"""Environments in processes of their own: started in every way, changed by the user, left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

from unbroken.adapters.sb3 import reaping, session
from unbroken.adapters.sb3.workers import workers_of
from unbroken.errors import StateMismatch
from unbroken.repo.process import current, identify
from unbroken.repo.repository import Repository
from unbroken.repo.workers import Workers
from unbroken.sb3 import CheckpointCallback

from .trainings import small, weights


class Cut(Exception):
    pass


class CutAt(BaseCallback):
    def __init__(self, at: int, ours: CheckpointCallback) -> None:
        super().__init__()
        self.at = at
        self.ours = ours

    def _on_step(self) -> bool:
        assert self.ours._session is not None and self.ours._session._engine is not None
        self.ours._session._engine._writer.wait()
        if self.n_calls == self.at:
            raise Cut
        return True


class Fragile(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds something that cannot be saved once it is told to."""

    def spoil(self) -> None:
        import numpy as np

        self.spoiled = np.zeros(1, dtype=[("a", object)])


def build(start_method: str = "fork", *, g: float = 10.0, n_envs: int = 2, env: str = "Pendulum-v1") -> PPO:
    kwargs: dict[str, Any] = {"g": g} if env.startswith("Pendulum") else {}
    venv = make_vec_env(
        env, n_envs=n_envs, seed=0, env_kwargs=kwargs, wrapper_class=Fragile,
        vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": start_method},
    )  # fmt: skip
    return PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1, **small())


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    built: list[SubprocVecEnv] = []
    init = SubprocVecEnv.__init__

    def remember(self: SubprocVecEnv, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        built.append(self)

    monkeypatch.setattr(SubprocVecEnv, "__init__", remember)
    yield
    for venv in built:
        venv.close()
    session._finished.clear()


def interrupted(root: Path, start_method: str = "fork") -> None:
    ours = CheckpointCallback(10, root)
    with pytest.raises(Cut):
        build(start_method).learn(256, callback=[ours, CutAt(45, ours)])


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_however_the_workers_are_started(start_method: str, tmp_path: Path) -> None:
    undisturbed = build().learn(192)
    interrupted(tmp_path, start_method)
    resumed = build(start_method).learn(192, callback=CheckpointCallback(10, tmp_path))
    assert weights(resumed) == weights(undisturbed)


def test_an_argument_of_an_environment_in_a_worker_may_change(tmp_path: Path) -> None:
    interrupted(tmp_path)
    ours, model = CheckpointCallback(10, tmp_path), build(g=9.0)
    model.learn(256, callback=ours)
    assert ours.report is not None
    assert sum("environment g: 10.0 -> 9.0" in line for line in ours.report.changes) == 1
    assert model.env is not None and model.env.get_attr("g") == [9.0, 9.0]


@pytest.mark.parametrize("changed", [{"n_envs": 3}, {"env": "MountainCarContinuous-v0"}])
def test_what_does_not_fit_in_one_worker_touches_none(changed: dict[str, Any], tmp_path: Path) -> None:
    interrupted(tmp_path)
    model = build(**changed)
    before = weights(model)
    with pytest.raises(StateMismatch):
        model.learn(256, callback=CheckpointCallback(10, tmp_path))
    assert weights(model) == before
    assert model.env is not None
    assert model.env.env_method("get_wrapper_attr", "_elapsed_steps") == [0] * model.n_envs


def test_the_seed_of_each_environment_in_workers_is_told_by_its_index(tmp_path: Path) -> None:
    interrupted(tmp_path)
    repository = Repository.open(tmp_path, "rl_model")
    assert repository.meta(repository.commits()[-1]).env_seeds == [0, 1]


def test_a_checkpoint_tells_of_each_worker_how_far_its_episodes_are(tmp_path: Path) -> None:
    model = build()
    model.learn(448, callback=CheckpointCallback(1000, tmp_path))
    assert isinstance(model.env, SubprocVecEnv)
    repository = Repository.open(tmp_path, "rl_model")
    told = repository.meta(repository.commits()[0]).worker_status
    assert [one["pid"] for one in told] == [process.pid for process in model.env.processes]
    # 224 steps each, and 200 make an episode.
    known = {name: [one[name] for one in told] for name in ("index", "state", "seed", "episodes", "steps")}
    assert known == {
        "index": [0, 1], "state": ["running"] * 2, "seed": [0, 1], "episodes": [1, 1], "steps": [24, 24],
    }  # fmt: skip


def test_an_error_in_a_worker_is_an_answer_and_the_worker_lives(tmp_path: Path) -> None:
    model = build()
    venv = model.env
    assert isinstance(venv, SubprocVecEnv)
    workers = workers_of(venv)
    venv.env_method("spoil", indices=[1])
    first, second = workers.ask("capture", True)
    assert not first.error
    assert "records" in second.error
    assert workers.ask("no such command")[0].error
    assert [process.is_alive() for process in venv.processes] == [True, True]


SCRIPT = """
import os, signal, sys
from stable_baselines3.common.callbacks import BaseCallback
from tests.adapters.sb3.test_workers import build
from unbroken.sb3 import CheckpointCallback
class Kill(BaseCallback):
    def _on_step(self):
        if self.n_calls == 8:
            print(*[p.pid for p in self.model.env.processes], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return True
build().learn(256, callback=[CheckpointCallback(2, sys.argv[1]), Kill()])
"""


def test_workers_that_a_killed_trainer_left_behind_are_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Into a file: the workers keep a pipe open for as long as they live.
    with (tmp_path / "pids").open("w") as pids:
        trainer = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)],
            stdout=pids, stderr=subprocess.DEVNULL, check=False, cwd=Path(__file__).parents[3],
        )  # fmt: skip
    assert trainer.returncode == -signal.SIGKILL
    left = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(left) == 2
    assert all(alive(pid) for pid in left), "forked workers are expected to outlive their trainer"
    build().learn(256, callback=CheckpointCallback(10, tmp_path))
    assert "ended 2 environment workers" in capsys.readouterr().err
    wait_for(lambda: not any(alive(pid) for pid in left))


def test_only_the_very_processes_of_a_trainer_that_is_gone_are_ended() -> None:
    gone, other = sleeper(), sleeper()
    trainer, worker = identify(gone.pid), identify(other.pid)
    later = replace(worker, start="1")
    try:
        assert reaping.reap(Workers(current(), (worker,))) == [], "the trainer is this process, and lives"
        assert reaping.reap(Workers(trainer, (worker,))) == [], "the trainer lives"
        gone.kill()
        gone.communicate()
        assert reaping.reap(Workers(trainer, (later,))) == [], "the number belongs to another process by now"
        assert other.poll() is None
        assert reaping.reap(None) == []
        assert reaping.reap(Workers(trainer, (worker,))) == [other.pid]
    finally:
        for process in (gone, other):
            process.kill()
            process.communicate()


def test_a_process_that_may_not_be_ended_keeps_nobody_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, other = sleeper(), sleeper()
    recorded = Workers(identify(gone.pid), (identify(other.pid),))

    def refused(pid: int, number: int) -> None:
        raise PermissionError(pid)

    try:
        gone.kill()
        gone.communicate()
        monkeypatch.setattr(os, "kill", refused)  # of another user, which a test cannot start
        assert reaping.reap(recorded) == []
    finally:
        monkeypatch.undo()
        for process in (gone, other):
            process.kill()
            process.communicate()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def alive(pid: int) -> bool:
    return identify(pid).start != ""


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()
