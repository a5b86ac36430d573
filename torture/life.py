"""The run that is tortured: what a training does to its directory, from its birth to its second start.

Everything follows from the number of a step, so that whoever finds a checkpoint knows what it must hold. A ring
of which each save writes a part, weights that all change, small leaves: so packs are shared, and compacted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from unbroken.errors import CorruptObject
from unbroken.format.meta import Meta
from unbroken.format.records import Commit, HistoryRecord
from unbroken.repo.process import Process
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.state.nodes import Array, Dict, Value
from unbroken.state.snapshot import Base, Bytes, Component, Rows, Snapshot
from unbroken.store.base import ByteStore
from unbroken.types import Digest, Step

JOB = "run"
CHUNK = 2048
CHUNKS = 9
WEIGHTS = 3000
EACH_STEP = 2
"""Chunks that a step writes."""
KEEP_LAST = 2
FAR = 10**6
"""Steps of the life after a fault: no step is reached twice."""


def _nobody(_promise: object) -> None:
    """Listen to no promise."""


@dataclass(slots=True)
class Promises:
    """What the run was told: this may never be lost, and nothing else may be taken for true."""

    mark: Callable[[object], None] = _nobody
    """Is told each promise, when it is made."""
    acknowledged: list[Commit] = field(default_factory=list[Commit])
    given_up: list[int] = field(default_factory=list[int])
    """Numbers of commits that a retention was to delete."""
    lines: int = 0
    """Lines of the history that were written."""

    def acknowledge(self, commit: Commit) -> None:
        """A save has returned."""
        self.acknowledged.append(commit)
        self.mark(commit)

    def give_up(self, sequences: Sequence[int]) -> None:
        """A retention begins."""
        self.given_up += sequences
        self.mark(tuple(sequences))

    def line(self) -> None:
        """A line of the history is written."""
        self.lines += 1
        self.mark("line")

    @classmethod
    def of(cls, marks: Sequence[object]) -> Promises:
        """Return what had been promised when these marks had been made."""
        made = cls()
        for mark in marks:
            if isinstance(mark, Commit):
                made.acknowledged.append(mark)
            elif isinstance(mark, tuple):
                made.given_up += mark
            else:
                made.lines += 1
        return made

    @property
    def kept(self) -> list[Commit]:
        """The commits that must be there."""
        return [commit for commit in self.acknowledged if commit.sequence not in self.given_up]


def tokens(seed: int) -> Callable[[], str]:
    """Return a source of write ids that repeats with its seed."""
    numbers = itertools.count(seed << 24)
    return lambda: f"{next(numbers):012x}"


def temporary_tokens(seed: int) -> Callable[[], str]:
    """Return a source of names of temporary files."""
    numbers = itertools.count(seed << 32)
    return lambda: f"{next(numbers):016x}"


def process(number: int) -> Process:
    """Return a process of another host: whether it lives cannot be told from here, so nobody waits for it."""
    return Process(pid=number, start="1", boot_id="boot", host="elsewhere")


@lru_cache(maxsize=4096)
def _noise(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def _array(content: bytes) -> Bytes:
    return np.array(np.frombuffer(content, np.uint8))


def _chunk(place: int, step: int) -> bytes:
    """Return what a chunk of the ring holds after `step`: it is written when the ring comes round to it."""
    last = step * EACH_STEP - 1  # the newest write
    written = last - (last - place) % CHUNKS
    return _noise(CHUNK, 10**6 + written) if written >= 0 else bytes(CHUNK)


@lru_cache(maxsize=256)
def contents_at(step: int) -> dict[str, list[bytes]]:
    """Return what a checkpoint of this step must hold, byte for byte."""
    return {
        "policy_weights": [_noise(WEIGHTS, step)],
        "replay_buffer": [b"".join(_chunk(place, step) for place in range(CHUNKS))],
        "counters": [_noise(300, 7), _noise(40, step + 1), _noise(100, step // 10)],
    }


def held_by(snapshot: Snapshot) -> dict[str, list[bytes]]:
    """Return what a checkpoint that was loaded holds."""
    return {
        name: [part.content(i).tobytes() for i in range(len(part.blobs))]
        for name, part in snapshot.components.items()
    }


def snapshot_at(step: int, *, since: int | None = None, base: Base | None = None) -> Snapshot:
    """Return the state at a step; of the ring only what was written since the step of `base`, if there is one."""
    contents = contents_at(step)
    ring = _array(contents["replay_buffer"][0])
    rows = Rows(ring.nbytes, CHUNK, ((0, ring),))
    if base is not None and since is not None and (step - since) * EACH_STEP < CHUNKS:
        places = sorted({write % CHUNKS for write in range(since * EACH_STEP, step * EACH_STEP)})
        ranges = tuple((at * CHUNK, ring[at * CHUNK : (at + 1) * CHUNK]) for at in places)
        rows = Rows(ring.nbytes, CHUNK, ranges, base)
    small = contents["counters"]
    leaves: dict[str, Value] = {
        f"leaf{i}": Array(d="|u1", s=(len(leaf),), b=i) for i, leaf in enumerate(small)
    }
    parts = (
        Component(
            name="policy_weights",
            roots={"model/policy": Array(d="|u1", s=(WEIGHTS,), b=0)},
            blobs=[_array(contents["policy_weights"][0])],
        ),
        Component(
            name="replay_buffer",
            roots={"model/replay_buffer": Array(d="|u1", s=(rows.size,), b=0)},
            blobs=[rows],
        ),
        Component(
            name="counters",
            roots={"model": Dict(v={"step": step, **leaves})},
            blobs=[_array(leaf) for leaf in small],
        ),
    )
    return Snapshot(components={part.name: part for part in parts})


def skeleton() -> Snapshot:
    """Return the state at the start of the training, without arrays."""
    return Snapshot(components={"counters": Component(name="counters", roots={"model": Dict(v={"lr": 0.5})})})


class Life:
    """One process of the run, from its start to its end."""

    def __init__(
        self,
        store: ByteStore,
        promises: Promises,
        number: int,
        *,
        clock: Callable[[], float] = lambda: 1.7e9,
        repository: Repository | None = None,
    ) -> None:
        """`repository` is what the process has looked for its checkpoint with: what is damaged it knows."""
        self.promises = promises
        self._base: tuple[int, Base] | None = None
        self._repository = repository or Repository.over(store, JOB, create=True)
        self.writer: RunWriter = self._repository.writer(
            owner=process(number), token=tokens(number), clock=clock, signing_key=lambda: None
        )
        self._birth = ""

    @property
    def is_born(self) -> bool:
        """Whether its birth document is written: commits name it."""
        return bool(self._birth)

    def begin(self) -> None:
        """Write down the birth and that the process has started."""
        self._birth = self.writer.write_birth(skeleton())
        self.writer.record_workers([process(77)])
        self.writer.append_history(HistoryRecord(event="start", fault=""))
        self.promises.line()

    def save(self, step: int) -> None:
        """Save a step, with all that goes before."""
        self.writer.mark_pending(Step(step), "schedule")
        snapshot = (
            snapshot_at(step)
            if self._base is None
            else snapshot_at(step, since=self._base[0], base=self._base[1])
        )
        try:
            commit = self.writer.write(
                snapshot, Meta(step=Step(step), reason="schedule", birth=Digest(self._birth))
            )
        except CorruptObject:
            self._base = None  # as the engine does it: the next save writes all of the ring
            raise
        self._base = step, snapshot.components["replay_buffer"].saved[0]
        self.promises.acknowledge(commit)

    def retain(self, keep_last: int = KEEP_LAST) -> None:
        """Delete what is too old."""
        plan = plan_retention(self._repository.commits(), keep_last=keep_last)
        self.promises.give_up([commit.sequence for commit in plan.dropped])
        self.writer.retain(plan)

    def prune(self) -> None:
        """Compact all there is."""
        self.writer.prune()

    def end(self) -> None:
        """End in order."""
        self.writer.append_history(HistoryRecord(event="end", fault="clean"))
        self.promises.line()
        self.writer.close()


def first_start(store: ByteStore, promises: Promises) -> None:
    """A run is born, saves six times and keeps two."""
    life = Life(store, promises, 1)
    life.begin()
    for step in range(1, 7):
        life.save(step)
        life.retain()
    life.end()


def second_start(store: ByteStore, promises: Promises) -> None:
    """It goes on, saves, and everything dead is pruned."""
    life = Life(store, promises, 2)
    life.begin()
    for step in (7, 8):
        life.save(step)
        life.retain()
    life.prune()
    life.end()


def whole(store: ByteStore, promises: Promises) -> None:
    """Both starts."""
    first_start(store, promises)
    second_start(store, promises)
