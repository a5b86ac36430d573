"""A run that is in training while somebody else reads it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from unbroken.format.compression import BlobCodec, Compression
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore, Names
from unbroken.store.memory import MemoryStore

from .rings import Ring
from .states import meta, process, snapshot, tokens


def source_run(
    store: ByteStore | None = None, *, saves: int = 3, ended: bool = True
) -> tuple[Repository, list[Snapshot]]:
    """Make a run whose checkpoints share most of a ring; return it and its states, the oldest first."""
    repository = Repository.over(store or MemoryStore(), "job", create=True)
    ring = Ring(60)
    states: list[Snapshot] = []
    with repository.writer(
        owner=process(1), token=tokens(1), compression=Compression(BlobCodec.GZIP), document_format="msgpack"
    ) as writer:
        birth = writer.write_birth(Snapshot())
        for step in range(saves):
            ring.train(10)
            state = ring.changed()
            facts = meta(
                step, metrics={"reward": 1.5}, segment=2, position="end" if ended and step == 2 else "step"
            )
            writer.write(state, msgspec.structs.replace(facts, birth=birth, episodes=7))
            ring.saved(state)
            states.append(ring.whole())
    return repository, states


When = Callable[[int, str], bool]


def never(number: int, key: str) -> bool:
    return False


def at_read(at: int) -> When:
    return lambda number, key: number == at


class Trained(MemoryStore):
    """The store of a run that is in training: it goes on right before reads that `when` picks by number and key.

    Reads of the training itself are not counted.
    """

    def __init__(self, train: Callable[[ByteStore], None]) -> None:
        super().__init__()
        self.when: When = never
        self.reads = 0
        self._train = train
        self._inside = False

    def get(self, key: str) -> bytes:
        self._read(key)
        return super().get(key)

    def list(self, prefix: str = "") -> Names:
        self._read(prefix)
        return super().list(prefix)

    def _read(self, key: str) -> None:
        if self._inside:
            return
        if self.when(self.reads, key):
            self._inside = True
            self._train(self)
            self._inside = False
        self.reads += 1


def save_and_keep_one(store: ByteStore) -> None:
    """Save one checkpoint more, and delete all others."""
    repository = Repository.over(store, "job")
    step = repository.commits()[0].step + 1
    with repository.writer(owner=process(2), token=tokens(100 + step)) as writer:
        writer.write(snapshot(step=step), meta(step))
        writer.retain(plan_retention(repository.commits(), keep_last=1))


def compact(store: ByteStore) -> None:
    """Delete all but the newest checkpoint, and move what that needs into packs of its own."""
    repository = Repository.over(store, "job")
    with repository.writer(owner=process(2), token=tokens(100)) as writer:
        writer.prune(plan_retention(repository.commits(), keep_last=1))


def trained(train: Callable[[ByteStore], None], when: When = never) -> Repository:
    """Return a run with three checkpoints that is trained on at these reads of it, counted from now."""
    store = Trained(train)
    source_run(store, ended=False)  # the end of a segment is never deleted
    repository = Repository.over(store, "job")
    store.when, store.reads = when, 0
    return repository
