"""Reading from an open file: into new memory, or straight into given memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from unbroken.store.system import System

_MOST_PARTS = 512
"""Parts a call: every system takes 1,024 and more."""


def read(descriptor: int, offset: int, length: int) -> bytes:
    """Return up to `length` bytes from `offset`: fewer only where the file ends."""
    parts: list[bytes] = []
    while length > 0:
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_parts(system: System, descriptor: int, offset: int, parts: Sequence[memoryview]) -> int:
    """Fill `parts` from `offset` on; return how many bytes were read: fewer only where the file ends."""
    waiting = [view for view in (part.cast("B") for part in parts) if view.nbytes]
    start = offset
    at = 0
    while at < len(waiting):
        count = system.preadv(descriptor, waiting[at : at + _MOST_PARTS], offset)
        if not count:
            break
        offset += count
        while count and count >= waiting[at].nbytes:
            count -= waiting[at].nbytes
            at += 1
        if count:  # the call ended inside a part
            waiting[at] = waiting[at][count:]
    return offset - start
