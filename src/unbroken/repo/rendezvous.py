"""How the ranks of one run meet: by small create-only records in the store that all of them see.

So it works under any launcher, and a rank that stops, dies or comes late costs the others a timeout and
never a hang: nothing here waits inside of a collective. Each record has a name of its own and is written once.

Not promised: speed on stores that answer slowly. Every word costs a request, and every look another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from unbroken.errors import CorruptObject, ObjectMissing, RankMissing
from unbroken.format import ranks, wire
from unbroken.repo import fencing
from unbroken.repo.seal import seal, unseal
from unbroken.store.base import ByteStore, SupportsLocalPath, children, say
from unbroken.types import Epoch

T = TypeVar("T")

WRITING = "writing a checkpoint together"
"""What ranks do from the order to the outcome of a save."""
AGREEING = "agreeing on where to go on from"
"""What ranks do from the first proposal to the last verdict of a start."""

NOTICE_SECONDS = 10.0
"""One who waits longer says so: a program that is silent for minutes looks as if it hung."""

FENCE_SECONDS = 1.0
"""So often one who waits looks whether the run was taken over meanwhile."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How to wait: the clock, and pauses that grow from `first` to `longest` seconds. `tell` is told once of a
    wait that takes long."""

    first: float = 0.0005
    longest: float = 0.02
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] | None = None

    @classmethod
    def for_store(cls, store: ByteStore) -> Patience:
        """Return what suits a store: looking into a directory is cheap, a request is not."""
        return cls() if isinstance(store, SupportsLocalPath) else cls(first=0.05, longest=1.0)

    def until(
        self, look: Callable[[], T | None], *, seconds: float, why: Callable[[], str] | None = None
    ) -> T | None:
        """Return the first answer of `look` that is not None; None if there is none in time. `why` says what is
        waited for."""
        deadline = self.clock() + seconds
        pause = self.first
        tell = self.tell if why is not None else None
        while True:
            found = look()
            left = deadline - self.clock()
            if found is not None or left <= 0:
                return found
            if tell is not None and why is not None and seconds - left >= NOTICE_SECONDS:
                tell(f"{why()}, {left:.0f} s more at most")
                tell = None
            self.sleep(min(pause, left))
            pause = min(pause * 1.5, self.longest)


@dataclass(frozen=True, slots=True)
class Limit:
    """How many seconds to wait, and the option by which a person allows more."""

    seconds: float
    option: str = "sync_timeout"


@dataclass(slots=True)
class Rendezvous:
    """The words of one epoch, as one rank of it reads and writes them."""

    store: ByteStore
    claim: fencing.Claim
    size: int
    patience: Patience
    timeout: float
    """Seconds that a word may take."""
    _looked: float = field(default=float("-inf"))

    @property
    def epoch(self) -> Epoch:
        return self.claim.epoch

    def say(self, key: str, record: wire.Record) -> None:
        """Write a record, once and for all.

        Raises:
            StoreError: it could not be written.
            Fenced: the run was taken over.
        """
        fencing.check(self.store, self.claim)
        fencing.create_only(self.store, key, seal(record), put=say)

    def hear(self, key: str, kind: type[wire.R]) -> wire.R | None:
        """Return a record, None as long as it is not there, or is being written.

        Raises:
            Fenced: the run was taken over: it will never be there.
        """
        found = read(self.store, key, kind)
        if found is None:
            self._look_for_fence()
        return found

    @property
    def limit(self) -> Limit:
        """How long a word may take where nothing else is said."""
        return Limit(self.timeout)

    def await_word(self, key: str, kind: type[wire.R], *, doing: str, within: Limit | None = None) -> wire.R:
        """Wait for a word of the coordinator.

        Raises:
            RankMissing: it does not come in time.
            Fenced: the run was taken over.
        """
        limit = within or self.limit
        found = self.patience.until(
            lambda: self.hear(key, kind), seconds=limit.seconds, why=lambda: f"{doing}: waits for rank 0"
        )
        if found is None:
            raise missing([0], doing=doing, within=limit)
        return found

    def heard(self, place: str, kind: type[wire.R], of: Collection[int]) -> dict[int, wire.R]:
        """Return what those of these ranks have said below `place` that have said it by now."""
        said = {rank: read(self.store, ranks.of_rank(place, rank), kind) for rank in self._new(place, of, ())}
        return {rank: record for rank, record in said.items() if record is not None}

    def gather(
        self,
        place: str,
        kind: type[wire.R],
        of: Collection[int],
        *,
        doing: str,
        within: Limit | None = None,
        found: dict[int, wire.R] | None = None,
    ) -> dict[int, wire.R]:
        """Wait until each of these ranks has left a word below `place`; `found` is filled in meanwhile.

        Raises:
            RankMissing: some do not in time, or their word is that of another one; it names them.
            Fenced: the run was taken over.
        """
        limit = within or self.limit
        found = {} if found is None else found

        def look() -> bool | None:
            for rank in self._new(place, of, found):
                record = read(self.store, ranks.of_rank(place, rank), kind)
                if record is not None:
                    _check_speaker(record, rank)
                    found[rank] = record
            if len(found) == len(of):
                return True
            self._look_for_fence()
            return None

        def why() -> str:
            return f"{doing}: waits for {who_of(sorted(set(of) - found.keys()))}"

        if self.patience.until(look, seconds=limit.seconds, why=why) is None:
            raise missing(sorted(set(of) - found.keys()), doing=doing, within=limit)
        return found

    def _new(self, place: str, of: Collection[int], found: Collection[int]) -> Iterable[int]:
        wanted = set(of).difference(found)
        if len(wanted) == 1:
            return wanted  # asked for by its name: cheaper than a listing, and never behind
        there = {ranks.rank_of(name) for name in children(self.store, place)}
        return sorted(rank for rank in wanted if rank in there)

    def _look_for_fence(self) -> None:
        now = self.patience.clock()
        if now - self._looked >= FENCE_SECONDS:
            self._looked = now
            fencing.check(self.store, self.claim)


def read(store: ByteStore, key: str, kind: type[wire.R]) -> wire.R | None:
    """Return a record that others write; None if it is not there, or not whole yet."""
    try:
        return unseal(store.get(key), kind, key=key)
    except (ObjectMissing, CorruptObject):
        return None


def _check_speaker(record: wire.Record, rank: int) -> None:
    """Raise where a record that says of itself whose it is lies under another rank's name."""
    if isinstance(record, (ranks.Hello, ranks.RankRecord, ranks.Finding)) and record.rank != rank:
        raise RankMissing(
            f"What stands in the place of rank {rank} is a word of rank {record.rank}.",
            hint="Give every process a rank of its own, and start all ranks again.",
            ranks=(rank,),
        )


def who_of(late: Collection[int]) -> str:
    """Return some ranks as a person names them."""
    return f"rank {next(iter(late))}" if len(late) == 1 else f"the ranks {', '.join(map(str, late))}"


def missing(late: Collection[int], *, doing: str, within: Limit) -> RankMissing:
    """Return the error that names the ranks that have said nothing."""
    return RankMissing(
        f"While {doing}, {who_of(late)} said nothing for {within.seconds:g} seconds.",
        hint=f"Look at what that process is doing; allow more time with {within.option} if it was only slow.",
        ranks=late,
    )
