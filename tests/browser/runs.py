"""A root with runs to look at: each shows something that a page has to cope with.

`killed` is made by real processes and real kills. The others are written through the repository into memory and laid
down as files at once: a thousand durable commits would cost a test more than it has.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
import numpy as np

from tests.adapters.nemo_gym.layered_examples import component, counter, segment
from tests.adapters.nemo_gym.layered_examples import snapshot as gym_snapshot
from tests.repo.rings import Ring
from tests.repo.states import meta, process, snapshot, tokens
from unbroken.format.meta import Meta
from unbroken.repo.repository import Repository
from unbroken.store.memory import MemoryStore

TRAINING = Path(__file__).parent / "training.py"
KILLED_AT = (70, 121)
"""Steps at which the training of `killed` was killed: between two saves, and in the save at 120."""
RESUMED_AT = (60, 100)
CHECKPOINTS = 120
SESSIONS = 10_000
MARKUP = '<img src=x onerror="document.title=1"></script><script>document.title=2</script>'
"""What a page must show, and not carry out."""


@dataclass(frozen=True, slots=True)
class Root:
    """A directory with runs, by what they are."""

    path: Path
    killed: Path
    many: Path
    sessions: Path
    markup: Path
    bare: Path
    damaged: Path


def root_at(folder: Path) -> Root:
    """Return where the runs in `folder` are, or will be."""
    return Root(folder, **{field.name: folder / field.name for field in fields(Root) if field.name != "path"})


def make_root(folder: Path) -> Root:
    """Make all runs in `folder`, which exists and is empty."""
    root = root_at(folder)
    make_killed(folder, root.killed.name)
    make_many(root.many)
    make_sessions(root.sessions)
    make_markup(root.markup)
    make_bare(root.bare)
    make_damaged(root.damaged)
    return root


def make_killed(root: Path, job: str) -> None:
    """A run that two processes were killed in and a third one has ended."""
    for step in KILLED_AT:
        assert _train(root, job, str(step)) == -signal.SIGKILL
    assert _train(root, job) == 0


def _train(root: Path, job: str, *kill_at: str) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("UNBROKEN_ROOT", None)
    done = subprocess.run(
        [sys.executable, TRAINING, root, job, *kill_at],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode


def make_many(run: Path, checkpoints: int = CHECKPOINTS) -> None:
    """A run of many checkpoints that share most of what they hold, with metrics and costs."""
    store = MemoryStore()
    ring = Ring(400, weights=2_000)
    with _opened(store, run.name).writer(owner=process(1), token=tokens(1), clock=_clock()) as writer:
        for number in range(checkpoints):
            ring.train(1)
            state = ring.changed()
            step = 1_000 * (number + 1)
            reward = 200.0 * (1.0 - math.exp(-number / 250.0)) + 5.0 * math.sin(number)
            writer.write(state, _facts(step, {"reward": reward, "loss": math.exp(-number / 300.0)}))
            ring.saved(state)
    _lay(store, run)


def make_sessions(run: Path, sessions: int = SESSIONS) -> None:
    """A run with the state of NeMo Gym: one checkpoint with two sessions, one with many."""
    store = MemoryStore()
    many = [counter(f"s-{number:05d}", count=number % 9, rollout=f"{number}-0") for number in range(sessions)]
    with _opened(store, run.name).writer(owner=process(1), token=tokens(1), clock=_clock()) as writer:
        writer.write(gym_snapshot(component()), _facts(1))
        writer.write(gym_snapshot(component({"counter": [segment(*many)]})), _facts(2, {"reward": 0.5}))
    _lay(store, run)


def make_markup(run: Path) -> None:
    """A run whose names and words hold HTML, and whose metrics are no numbers."""
    store = MemoryStore()
    with _opened(store, run.name).writer(owner=process(1), token=tokens(1), clock=_clock()) as writer:
        for step, value in ((10, 1.0), (20, math.nan), (30, math.inf)):
            facts = _facts(step, {MARKUP: value, "reward": value})
            writer.write(snapshot(step=step), msgspec.structs.replace(facts, reason=MARKUP, notes=[MARKUP]))
    _lay(store, run)


def make_bare(run: Path) -> None:
    """A run that was begun and has no checkpoint yet."""
    store = MemoryStore()
    _opened(store, run.name).writer(owner=process(1), token=tokens(1)).close()
    _lay(store, run)


def make_damaged(run: Path) -> None:
    """A run whose newest checkpoint has lost its manifest, and whose middle one a byte of its metadata."""
    store = MemoryStore()
    with _opened(store, run.name).writer(owner=process(1), token=tokens(1), clock=_clock()) as writer:
        for step in (10, 20, 30):
            writer.write(snapshot(noise(step), step=step), _facts(step, {"reward": float(step)}))
    newest, middle, _ = Repository.over(store, run.name).commits()
    store.delete(f"{newest.directory}/manifest.json")
    text = store.get(f"{middle.directory}/meta.json")
    store.put(f"{middle.directory}/meta.json", text.replace(b"schedule", b"schedulx"))
    _lay(store, run)


def noise(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(3_000)


def _facts(step: int, metrics: Mapping[str, float] | None = None) -> Meta:
    facts = meta(step, metrics=metrics)
    return msgspec.structs.replace(facts, episodes=step // 10, seconds_blocked=0.004, bytes=1_700_000)


def _opened(store: MemoryStore, job: str) -> Repository:
    return Repository.over(store, job, create=True)


def _clock() -> _Clock:
    return _Clock()


class _Clock:
    """A minute goes by between two looks at it."""

    def __init__(self) -> None:
        self._now = 1_790_000_000.0

    def __call__(self) -> float:
        self._now += 60.0
        return self._now


def _lay(store: MemoryStore, run: Path) -> None:
    """Write every object as the file that a local run has it in."""
    for key in store.list():
        path = run / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(key))
