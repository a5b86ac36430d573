"""What a walk says of an array that is part of a ring buffer, and who takes its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unbroken.state.snapshot import Bytes, Rows


@dataclass(frozen=True, slots=True)
class RingArray:
    """One array of a ring, met by a walk: `holder` is the array or tensor at attribute `attribute` (or
    inside it) of the buffer `owner`; `content` are the bytes of its written rows, in live memory; it will be
    blob `blob` of `component`."""

    owner: object
    attribute: str
    place: str
    holder: object
    content: Bytes
    row_bytes: int
    component: str
    blob: int


class Ledger(Protocol):
    """Knows what the newest checkpoint holds of each ring."""

    def meet(self, owner: object) -> None:
        """Count what `owner` has added until now: a ring, of which nothing is written yet."""
        ...

    def rows(self, array: RingArray) -> Rows | None:
        """Return what has to be captured of the array, still in live memory; None for all of it, as
        of any other array."""
        ...
