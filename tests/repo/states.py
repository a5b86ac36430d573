"""States, metadata and writers for the tests of this layer. Everything is determined by its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from unbroken.format import layout, pack
from unbroken.format.buffers import Content
from unbroken.format.meta import Meta
from unbroken.format.records import Position
from unbroken.repo.process import Process
from unbroken.repo.repository import Repository
from unbroken.state.nodes import Array, Dict, Opaque, Tuple, Value
from unbroken.state.snapshot import Component, Promise, Snapshot
from unbroken.store.base import ByteStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import FaultyStore
from unbroken.types import Fidelity, Step

T = TypeVar("T")
Chunks = Mapping[str, bytes]


def snapshot(
    weights: bytes = b"w" * 3000, buffer: bytes = b"", *, step: int = 0, opaque: bool = False
) -> Snapshot:
    """Return a state with a component that has one blob, one that has two, and one that has none."""
    counters: dict[str, Value] = {"global_step": step, "name": "λ"}
    if opaque:
        counters["callback"] = Opaque(c="builtins:object", data=b"not a pickle")
    policy = Component(
        name="policy_weights",
        roots={
            "model/policy": Dict(
                v={"w": Array(d="|u1", s=(len(weights),), b=0, id=1), "t": Tuple(v=[1, 2.5])}
            )
        },
        blobs=[array(weights)],
        tensors={"model/policy": {"w": "model/policy/w"}},
    )
    replay = Component(
        name="replay_buffer",
        roots={
            "model/replay_buffer": Dict(
                v={
                    "observations": Array(d="|u1", s=(len(buffer),), b=0, id=2),
                    "actions": Array(d="|u1", s=(4,), b=1, id=3),
                }
            )
        },
        blobs=[array(buffer), array(bytes([step % 256] * 4))],
    )
    plain = Component(name="counters", roots={"model": Dict(v=counters)})
    return Snapshot(
        components={part.name: part for part in (policy, replay, plain)},
        promises={
            "policy_weights": Promise(Fidelity.EXACT),
            "replay_buffer": Promise(Fidelity.APPROXIMATE, "why"),
        },
        counters={"episodes": 3},
    )


def array(content: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(content, np.uint8).copy()


def noise(size: int, seed: int) -> bytes:
    """Return bytes that do not compress."""
    return np.random.default_rng(seed).bytes(size)


def meta(
    step: int,
    *,
    reason: str = "schedule",
    good: bool = True,
    position: Position = "step",
    segment: int = 0,
    metrics: Mapping[str, float] | None = None,
) -> Meta:
    return Meta(
        step=Step(step),
        reason=reason,
        good=good,
        position=position,
        segment=segment,
        metrics=dict(metrics or {}),
    )


def tokens(seed: int = 0) -> Callable[[], str]:
    """Return a source of write ids that repeats with its seed."""
    numbers = itertools.count(seed << 24)
    return lambda: f"{next(numbers):012x}"


def clock() -> float:
    return 1_700_000_000.0


def process(number: int) -> Process:
    """Return a process of another host, of which nothing is known here."""
    return Process(pid=number, start="1", boot_id="boot", host="elsewhere")


def same(a: Snapshot, b: Snapshot) -> bool:
    """Whether two snapshots hold the same components."""
    if a.components.keys() != b.components.keys():
        return False
    return all(
        a.components[name].roots == part.roots
        and a.components[name].tensors == part.tensors
        and _contents(a.components[name]) == _contents(part)
        for name, part in b.components.items()
    )


def _contents(component: Component) -> list[bytes]:
    return [component.content(i).tobytes() for i in range(len(component.blobs))]


class Interrupted(FaultyStore):
    """Lets something happen in the middle: `event` runs once, right before or after a matching operation."""

    def __init__(
        self,
        inner: ByteStore,
        event: Callable[[], None],
        *,
        before: bool,
        when: Callable[[int, str, str], bool],
    ) -> None:
        super().__init__(inner)
        self.event: Callable[[], None] | None = event
        self._before = before
        self._when = when
        self.number = 0

    def put(self, key: str, data: Content) -> None:
        self._around("put", key, lambda: super(Interrupted, self).put(key, data))

    def put_if_absent(self, key: str, data: Content) -> bool:
        return self._around("put_if_absent", key, lambda: super(Interrupted, self).put_if_absent(key, data))

    def delete(self, key: str) -> None:
        self._around("delete", key, lambda: super(Interrupted, self).delete(key))

    def _around(self, name: str, key: str, operation: Callable[[], T]) -> T:
        event = self.event if self._when(self.number, name, key) else None
        self.number += 1
        if event is None:
            return operation()
        self.event = None
        if self._before:
            event()
        done = operation()
        if not self._before:
            event()
        return done


def copied(store: ByteStore) -> MemoryStore:
    """Return a copy in memory."""
    copy = MemoryStore()
    for key in store.list():
        copy.put(key, store.get(key))
    return copy


def assert_sound(repository: Repository) -> None:
    """Every commit that a reader sees is whole; nothing that a reader sees is missing."""
    for commit in repository.commits():
        assert repository.verify(commit) == [], commit
        repository.load(commit)


def assert_swept(repository: Repository) -> None:
    """Nothing lies in the run that no commit needs."""
    store = repository.store
    commits = repository.commits()
    directories = {commit.directory for commit in commits}
    assert {key.rpartition("/")[0] for key in store.list(layout.STEPS)} == directories
    needed = {digest for commit in commits for digest in repository.manifest(commit).blobs}
    packs = store.list(layout.PACKS)
    for key in packs:
        name = layout.pack_name(key)
        assert name is not None
        assert layout.pack(name) in packs
        index = pack.decode_index(store.get(layout.index(name)))
        assert needed & {entry.digest for entry in index.entries}, f"{key} is garbage"
    assert {layout.commit(commit.sequence) for commit in commits} == set(store.list(layout.COMMITS))
