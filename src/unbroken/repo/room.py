"""How much memory a checkpoint may ask for: what it announces is compared with it before any is taken.

Not promised: that so much is free. It is what this machine could ever give, so that a size which nothing can
hold is refused, and one that is large is not.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable

from unbroken.errors import CorruptObject
from unbroken.format.document import BlobRef

PER_CHUNK = 320
"""Bytes that a reader needs for a chunk beside its contents."""
_UNKNOWN = 1 << 44


def most_memory() -> int:
    """Return the bytes that this process could have at most: those of the machine, or of its limit."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        whole = _UNKNOWN
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min([whole, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


def check_room(refs: Iterable[BlobRef], *, where: str) -> None:
    """Raise `CorruptObject` if arrays need more memory than there can be; `where` is the checkpoint."""
    needed = sum(ref.size + ref.count * PER_CHUNK for ref in refs)
    if needed > (most := most_memory()):
        raise CorruptObject(
            f"{where} announces arrays for which {needed:,} bytes are needed; this process can have {most:,}.",
            hint="If `unbroken verify` finds it whole, restore it where there is more memory.",
            key=where,
        )
