"""What of a process stands in the middle of data that a run reads."""

from __future__ import annotations

import io
import sys


def reads_on(value: object) -> bool:
    """Whether something stands at a place of a run's data: a file or a table that is being read."""
    if isinstance(value, io.IOBase):
        return value is not sys.__stdin__ and not value.closed and value.readable() and not value.writable()
    return hasattr(type(value), "__next__")
