"""Local variables of a worker's loop that outlive one of its commands, and so belong to the run.

Gymnasium's worker remembers in a local variable that the next step has to reset; SB3's keeps what the last
reset told. Nothing but the frame leads to them, so they are read from it and written back into it, while
the loop waits in a call for the answer. Every write is read back.

Not promised: interpreters that have no way to write into a frame. There a restore fails and says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from types import FrameType
from typing import Any

from unbroken.errors import RestoreFailed


class LoopLocals:
    """Some local variables of a frame, as attributes that a walk finds and a restore replaces."""

    def __init__(self, frame: FrameType, names: Iterable[str]) -> None:
        held = frame.f_locals
        for name in names:
            if name in held:
                vars(self)[name] = held[name]

    def write_into(self, frame: FrameType) -> None:
        """Give the frame's variables the values that stand here.

        Raises:
            RestoreFailed: this interpreter does not write into frames.
        """
        wanted: dict[str, Any] = dict(vars(self))
        held = frame.f_locals
        held.update(wanted)
        write = getattr(ctypes.pythonapi, "PyFrame_LocalsToFast", None)
        if write is not None:  # since Python 3.13 `f_locals` itself writes through
            write(ctypes.py_object(frame), ctypes.c_int(0))
        found = frame.f_locals  # read anew from the frame, not from what was just put together
        lost = [name for name, value in wanted.items() if found.get(name) is not value]
        if lost:
            raise RestoreFailed(
                f"This Python does not write local variables of a running function: {', '.join(lost)}.",
                hint="Use CPython, or a vector whose environments live in the trainer's process.",
            )
