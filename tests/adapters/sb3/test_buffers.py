"""Replay buffers of every kind: an incremental save costs the new rows, and a killed run ends as the
undisturbed one.

Chunks are a few rows long here, so that small buffers have many.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback

from tests.adapters.sb3.test_exactness import Case, Runner, differences
from tests.adapters.sb3.trainings import dqn
from tests.capture.shelf import Shelf, contents
from tests.capture.test_rings import KINDS, add, build
from unbroken.adapters.sb3.source import TrainingSource
from unbroken.capture import ledger
from unbroken.capture.hooks import Hook
from unbroken.capture.policies import default_policy
from unbroken.capture.rings import written_rows
from unbroken.capture.source import GraftSource
from unbroken.engine.engine import CheckpointEngine
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback
from unbroken.state import walk
from unbroken.state.snapshot import Component, Snapshot

CHUNK = 8192
CAPACITY = 40
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "CHUNK_BYTES", CHUNK)


class Training:
    """A buffer with `rows` rows that is saved."""

    def __init__(self, kind: str, rows: int) -> None:
        self.held = {"buffer": build(kind, CAPACITY)}
        self.source = GraftSource({"held": self.held}, default_policy())
        self.shelf = Shelf()
        add(self.held["buffer"], rows)
        self.save()

    def save(self) -> dict[str, float]:
        """Save, compare with a plain full copy, and return how many rows each array gave beside two chunks."""
        saved = self.shelf.save(self.source)
        assert contents(saved) == contents(walk.capture(self.source.roots, default_policy()))
        return {
            known.taken.array.place: (self.captured(known) - 2 * known.taken.chunk)
            / known.taken.array.row_bytes
            for known in self.source._ledger.known.values()
        }

    def captured(self, known: ledger.Known) -> int:
        return self.shelf.blobs[known.taken.array.component, known.taken.array.blob]


@every_kind
@pytest.mark.parametrize("rows", [25, 45, 79])
@pytest.mark.parametrize("new", [0, 1, 9, 20])
def test_a_save_costs_the_new_rows_and_two_chunks_an_array(kind: str, rows: int, new: int) -> None:
    training = Training(kind, rows)
    add(training.held["buffer"], new, seed=1)
    cost = training.save()
    assert len(cost) >= 1, "no array was captured by its rows"
    assert max(cost.values()) <= new


def lap(buffer: Any) -> None:
    add(buffer, CAPACITY, seed=2)


def reset(buffer: Any) -> None:
    buffer.reset()
    add(buffer, 30, seed=2)


def mark_end(buffer: Any) -> None:
    buffer.dones[buffer.pos - 1] = True
    buffer.timeouts[buffer.pos - 1] = True


def cut_short(buffer: Any) -> None:
    if hasattr(buffer, "truncate_last_trajectory"):
        buffer.truncate_last_trajectory()
    add(buffer, 1, seed=2)


def fail(buffer: Any) -> None:
    with pytest.raises((ValueError, IndexError)):
        buffer.add(*[np.zeros((3, 3, 3))] * 5, [{}, {}])


@every_kind
@pytest.mark.parametrize("act", [lap, reset, mark_end, cut_short, fail], ids=lambda act: act.__name__)
@pytest.mark.filterwarnings("ignore:The last trajectory")
def test_what_happens_to_a_buffer_is_in_the_next_checkpoint(kind: str, act: Callable[[Any], None]) -> None:
    training = Training(kind, CAPACITY + 13)
    act(training.held["buffer"])
    training.save()


@every_kind
def test_a_buffer_that_sb3_has_saved_and_loaded_in_between(kind: str, tmp_path: Path) -> None:
    save_util = pytest.importorskip("stable_baselines3.common.save_util")
    training = Training(kind, CAPACITY + 13)
    save_util.save_to_pkl(tmp_path / "buffer.pkl", training.held["buffer"])
    training.held["buffer"] = loaded = save_util.load_from_pkl(tmp_path / "buffer.pkl")
    add(loaded, 2, seed=3)
    assert max(training.save().values()) > 2, "it is another buffer: everything is captured"
    add(loaded, 2, seed=4)
    assert max(training.save().values()) <= 2


def test_rollout_buffers_are_no_rings() -> None:
    contrib = pytest.importorskip("sb3_contrib.common.recurrent.buffers")
    maskable = pytest.importorskip("sb3_contrib.common.maskable.buffers")
    for cls in (contrib.RecurrentRolloutBuffer, maskable.MaskableRolloutBuffer):
        assert written_rows(cls.__new__(cls)) is None


CASES = [
    Case("dqn", 400, 230, 37, ("model/replay_buffer",)),
    Case("dqn_n_steps", 300, 190, 37, ("model/replay_buffer",)),
    Case("dqn_lean", 400, 130, 21, ("model/replay_buffer/observations",)),
    Case("sac_in_three", 360, 105, 19, ("model/replay_buffer",)),
    Case("dqn_dict", 400, 130, 21, ("model/replay_buffer/observations/achieved_goal",)),
    Case("dqn_her", 400, 130, 21, ("model/replay_buffer/observations/achieved_goal",)),
    Case("qrdqn", 400, 130, 21, ("model/replay_buffer/next_observations",)),
]
"""Each laps its buffer at least once."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_run_ends_as_the_undisturbed_one(case: Case, runner: Runner, tmp_path: Path) -> None:
    order: dict[str, Any] = {
        "case": case.name, "steps": case.steps, "save_freq": case.save_freq, "chunk": 256,
        "log": str(tmp_path / "log"),
    }  # fmt: skip
    log, undisturbed, killed, cold = (tmp_path / name for name in ("log", "U", "R", "C"))
    assert runner.run(**order, root=str(undisturbed), out=f"{undisturbed}.json") == 0, log.read_text()
    assert runner.run(**order, root=str(killed), out=f"{killed}.json", kill=case.kill) == -9, log.read_text()
    shutil.copytree(killed, cold)
    assert runner.run(**order, root=str(killed), out=f"{killed}.json") == 0, log.read_text()
    assert runner.run(**order, root=str(cold), out=f"{cold}.json", cold=case.cold) == 0, log.read_text()

    expected, resumed, forgot = (json.loads((tmp_path / f"{x}.json").read_text()) for x in "URC")
    for found in (expected, resumed):
        assert any(place.startswith("model/replay_buffer/observations") for place in found["in part"])
    assert (resumed["weights"], resumed["draws"]) == (expected["weights"], expected["draws"])
    assert differences(undisturbed, killed) == []
    assert forgot["weights"] != expected["weights"], f"{case.cold} left cold changes nothing"


@pytest.fixture(scope="module")
def runner() -> Any:
    found = Runner(3)
    yield found
    found.close()


class Meddler(BaseCallback):
    """Saves, copies and loads the buffer while it is being counted, as programs do."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.counted = 0

    def _on_step(self) -> bool:
        model: Any = self.model
        self.counted += isinstance(vars(model.replay_buffer).get("add"), Hook)
        if self.n_calls == 60:
            model.save_replay_buffer(self.path)
        if self.n_calls == 80:
            model.load_replay_buffer(self.path)
        if self.n_calls == 90:
            model.replay_buffer = deepcopy(model.replay_buffer)
        return True


def test_in_a_training_of_two_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint holds what a plain full copy of that moment holds, and nothing is left behind."""
    capture = TrainingSource.capture

    def compared(self: TrainingSource) -> Snapshot:
        snapshot = capture(self)
        model: Any = self._model
        plain = walk.capture({"it": model.replay_buffer}, default_policy())
        truths.append(plain.components["training_state"])
        return snapshot

    truths: list[Component] = []
    monkeypatch.setattr(TrainingSource, "capture", compared)
    monkeypatch.setattr(CheckpointEngine, "save", partialmethod(CheckpointEngine.save, wait=True))
    monkeypatch.setattr(ledger, "CHUNK_BYTES", 256)
    model = dqn()
    meddler = Meddler(tmp_path / "buffer.pkl")
    for reset in (True, False):
        ours = CheckpointCallback(10, tmp_path / "runs", "job", keep_last=100)
        model.learn(110, callback=[ours, meddler], reset_num_timesteps=reset)
        assert not isinstance(vars(model.replay_buffer).get("add"), Hook)
    assert meddler.counted > 100
    repository = Repository.open(tmp_path / "runs", "job")
    commits = repository.commits()
    assert len(commits) >= 20
    assert len(truths[-1].blobs) == 2
    for commit, truth in zip(reversed(commits), truths, strict=True):
        loaded = repository.load(commit, ["replay_buffer"]).components["replay_buffer"]
        assert bytes_of(loaded) == bytes_of(truth), commit.step


def bytes_of(component: Component) -> list[bytes]:
    return [component.content(i).tobytes() for i in range(len(component.blobs))]
