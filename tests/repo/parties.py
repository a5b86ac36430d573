"""Two ranks of a run as two threads over one store, in a time that stands still until one of them is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from unbroken.errors import ObjectMissing, StoreUnavailable
from unbroken.format import layout
from unbroken.format.buffers import Content
from unbroken.repo.coordinator import Ranks
from unbroken.repo.follower import Follower
from unbroken.repo.rendezvous import Patience
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.state.parts import view
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import ByteStore, Names

from .states import meta, noise, process, same, snapshot, tokens

REPLICATED = frozenset({"policy_weights"})
KEY = b"k" * 32
SECONDS = 120.0
"""So long a thread may take; what waits in vain gives up as soon as the other one is gone."""


@dataclass
class Time:
    """Stands still while all ranks are at work. When one is done, who waits may look a few times more."""

    replicated: frozenset[str] = REPLICATED
    start_timeout: float = 1.0
    over: threading.Event = field(default_factory=threading.Event)
    _now: float = 0.0

    def __call__(self) -> float:
        if self.over.is_set():
            self._now += 0.1
        return self._now

    def patience(self) -> Patience:
        return Patience(first=0.0002, longest=0.001, clock=self, sleep=time.sleep)

    def ranks(self, size: int = 2) -> Ranks:
        return Ranks(
            size=size,
            replicated=self.replicated,
            sync_timeout=1.0,
            start_timeout=self.start_timeout,
            patience=self.patience(),
        )


class View:
    """The store as one rank sees it: what `hides` does not show, what `fails` cannot be asked for, and of what
    `spoils` another byte is read. All of them look at the key, and may look at anything else."""

    def __init__(
        self,
        inner: ByteStore,
        *,
        hides: Callable[[str], bool] = lambda _: False,
        fails: Callable[[str], bool] = lambda _: False,
        spoils: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._inner = inner
        self._hides, self._fails, self._spoils = hides, fails, spoils
        self.written: list[str] = []

    def get(self, key: str) -> bytes:
        self._look(key)
        data = self._inner.get(key)
        return bytes([data[0] ^ 1]) + data[1:] if self._spoils(key) else data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._look(key)
        return self._inner.get_range(key, offset, length)

    def size(self, key: str) -> int:
        self._look(key)
        return self._inner.size(key)

    def put(self, key: str, data: Content) -> None:
        self._may(key)
        self.written.append(key)
        self._inner.put(key, data)

    def put_if_absent(self, key: str, data: Content) -> bool:
        self._may(key)
        self.written.append(key)
        return self._inner.put_if_absent(key, data)

    def list(self, prefix: str = "") -> Names:
        self._may(prefix)
        return [key for key in self._inner.list(prefix) if not self._hides(key)]

    def delete(self, key: str) -> None:
        self._may(key)
        self._inner.delete(key)

    def _look(self, key: str) -> None:
        self._may(key)
        if self._hides(key):
            raise ObjectMissing(f"{key} does not exist.", key=key)

    def _may(self, key: str) -> None:
        if self._fails(key):
            raise StoreUnavailable(f"{key} cannot be reached.", key=key)


def state(rank: int, step: int, *, opaque: bool = False) -> Snapshot:
    """Return what a rank holds at a step: weights as all have them, and a buffer of its own."""
    return snapshot(noise(4000, step), noise(6000, 1000 * rank + step), step=step + rank, opaque=opaque)


def at_once(*works: Callable[[], object], time_of: Time | None = None) -> list[object]:
    """Do all of these at once, each in a thread of its own; return what each returns or raises.

    Time passes from the moment when one is done, whatever became of it: nothing else comes from it.
    """
    if time_of is not None:
        time_of.over.clear()
    results: list[object] = [None] * len(works)

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:  # noqa: BLE001 - that of a process which has stopped, too
            results[number] = error
        if time_of is not None:
            time_of.over.set()

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    return results


class Parties:
    """Two ranks that work on one run, each over a store of its own that leads to the same place."""

    def __init__(
        self,
        first: ByteStore,
        second: ByteStore | None = None,
        *,
        seed: int = 1,
        replicated: frozenset[str] = REPLICATED,
        keys: tuple[bytes, bytes] = (KEY, KEY),
        opaque: bool = False,
    ) -> None:
        """`keys` sign what each rank has pickled, where the states are to be `opaque`."""
        self._keys = keys
        self._opaque = opaque
        self.time = Time(replicated)
        self._stores = (first, first if second is None else second)
        self._seed = seed
        self.writer: RunWriter | None = None
        self.follower: Follower | None = None

    def begin(self) -> list[object]:
        """Let both take their seats; return what came of it."""

        def first() -> None:
            self.writer = Repository.over(self._stores[0], "job", create=True).writer(
                token=tokens(2 * self._seed),
                owner=process(10 * self._seed),
                ranks=self.time.ranks(),
                signing_key=lambda: self._keys[0],
            )

        def second() -> None:
            repository = Repository.over(self._stores[1], "job", create=True)
            self.follower = repository.follow(
                1,
                self.time.ranks(),
                owner=process(10 * self._seed + 1),
                signing_key=lambda: self._keys[1],
            )

        return at_once(first, second, time_of=self.time)

    def save(self, step: int, *, keep_last: int = 2) -> list[object]:
        """Let both save a step, and rank 0 tidy up; return what came of it."""

        def first() -> None:
            assert self.writer is not None
            checkpoints = self.writer.checkpoints
            checkpoints.write(state(0, step, opaque=self._opaque), meta(step))
            checkpoints.retain(plan_retention(checkpoints.commits(), keep_last=keep_last))

        def second() -> None:
            assert self.follower is not None
            self.follower.checkpoints.write(state(1, step, opaque=self._opaque), meta(step))

        return at_once(first, second, time_of=self.time)


def assert_each_whole_and_of_one_step(store: ByteStore) -> list[int]:
    """Every commit that a reader sees is whole and holds what all ranks had at its step; return the steps."""
    try:
        store.get(layout.FORMAT)
    except ObjectMissing:
        return []
    repository = Repository.over(store, "job")
    commits = repository.commits()
    for commit in commits:
        assert repository.verify(commit) == []
        loaded = repository.load(commit)
        for rank in range(2):
            assert same(view(loaded, rank), view(state(rank, commit.step), rank))
    return [commit.step for commit in commits]
