"""Finds rows of a ring that were changed other than by adding: an old reward corrected in place, say.

An incremental save does not look at them, so a checkpoint would hold their former values. After each
commit the writer's thread compares a part of the rows in live memory with the digests of their chunks in
the checkpoint, in rotation. Training goes on meanwhile, so a difference is only a suspicion. It is decided
at the next clean point, where it counts unless the chunk is captured anyway.

What is promised: a row that was changed, and not changed back, is found after at most N commits and is
in the save that follows, where N is the size of all arrays in question divided by the budget, rounded up.
From then on that array is captured whole in each save, and a warning says so. Whatever happens, the
checkpoint at the end of a training is captured whole.

Not promised: that checkpoints from before it was found hold the change (the warning says which may
lack it), and memory that is taken away from an array while it exists (`resize` with `refcheck=False`, a
storage of a tensor set to another size).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from unbroken.format.chunks import ChunkList
from unbroken.format.digest import digest_of, split
from unbroken.state.nodes import class_name
from unbroken.state.ring import RingArray
from unbroken.state.snapshot import Base, Bytes
from unbroken.types import Digest

BUDGET = 32 << 20
"""Bytes that are compared after each commit; reading and digesting them takes about 20 ms."""

ChunksOf: TypeAlias = Callable[[Base], ChunkList]
"""Returns the chunks of a saved array."""


class RowsChangedWarning(UserWarning):
    """Rows of a ring were changed other than by adding, and checkpoints may lack the change."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """The bytes from `start` to `end` differed from `digest` after the commit of `step`; at that of
    `sound` they did not (None: nobody has looked before)."""

    start: int
    end: int
    digest: Digest
    step: int
    sound: int | None


class Auditor:
    """Looks at up to about `budget` bytes at a time. `look` and `finds_more` never run at the same time."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.distrusted: set[str] = set()
        """Places of the arrays that were found changed."""
        self._budget = budget
        self._next: tuple[str, int] = ("", 0)
        """Place and chunk to look at next."""
        self._suspicions: dict[str, list[_Suspicion]] = {}
        self._round: int | None = None
        """Step at which the present round began; and the one before."""
        self._former_round: int | None = None

    def look(self, held: Sequence[tuple[RingArray, Base]], chunks_of: ChunksOf, *, step: int) -> None:
        """Compare a part of arrays in live memory with what they are saved as in the checkpoint of `step`.

        Runs beside the training, and only reads.
        """
        self._suspicions = {}
        left = self._budget
        for array, base, chunks in self._in_rotation(held, step):
            digests = chunks_of(base)
            for i in chunks:
                start, end = i * base.chunk, min((i + 1) * base.chunk, base.size)
                if not _equal(array.content[start:end], digests[i]):
                    found = self._suspicions.setdefault(array.place, [])
                    found.append(_Suspicion(start, end, digests[i], step, self._former_round))
                left -= end - start
                self._next = array.place, i + 1
                if left <= 0:
                    return

    def _in_rotation(
        self, held: Sequence[tuple[RingArray, Base]], step: int
    ) -> Iterator[tuple[RingArray, Base, range]]:
        """Yield every chunk once, beginning where the last look has ended."""
        place, chunk = self._next
        arrays = sorted(held, key=lambda pair: pair[0].place)
        if self._round is None:
            self._round = step
        for array, base in arrays:
            if array.place >= place:
                yield array, base, range(chunk if array.place == place else 0, base.count)
        self._former_round, self._round = self._round, step
        for array, base in arrays:
            if array.place <= place:
                yield array, base, range(min(chunk, base.count) if array.place == place else base.count)

    def finds_more(self, array: RingArray, captured: Sequence[tuple[int, int]]) -> bool:
        """Say whether more of `array` has changed than the ranges that are `captured`. For clean points.

        Warns if so; the array is `distrusted` from then on.
        """
        for found in self._suspicions.pop(array.place, ()):
            anyway = any(start <= found.start and found.end <= end for start, end in captured)
            if not anyway and not _equal(array.content[found.start : found.end], found.digest):
                self.distrusted.add(array.place)
                warnings.warn(_told(array, found), RowsChangedWarning, stacklevel=2)
                return True
        return False


def _equal(content: Bytes, digest: Digest) -> bool:
    return digest_of(content.data, algorithm=split(digest)[0]) == digest


def _told(array: RingArray, found: _Suspicion) -> str:
    first, last = found.start // array.row_bytes, (found.end - 1) // array.row_bytes
    since = "of this process" if found.sound is None else f"after that of step {found.sound:,}"
    name = class_name(type(array.owner)).partition(":")[2]
    return (
        f"{array.place}: something in rows {first:,} to {last:,} was changed other than by adding rows."
        f" Checkpoints {since} up to that of step {found.step:,} may hold former values there. From now on"
        f" all of it is captured at each save. If such changes are meant, declare them: in {name},"
        f' __unbroken_ring__ = unbroken.Ring(..., anywhere=("{array.attribute}",)).'
    )
