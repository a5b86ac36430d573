"""Puts a folder, or a file, that was written beside its place into that place.

Invariant: under its name there is at any moment what stood there, or what takes its place, and never nothing or a
mixture; a kill at any moment included, where the file system lets two names change places in one step.

Not promised: that on file systems without such a step (some of the network's). There the older one is renamed first,
and a kill right behind it leaves the two beside each other, under the names `.NAME-…` and `.NAME-…-old`.
Not promised either: durability. Nothing is synced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

_HERE = -100
"""AT_FDCWD of Linux: paths that are not absolute begin in the working directory."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""
_CANNOT = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def take_place(beside: Path, place: Path) -> None:
    """Rename `beside` to `place`, on the same file system. What stood there goes only afterwards.

    Raises:
        OSError: it cannot be renamed, and what stood there stands there; or that cannot be removed.
    """
    if not os.path.lexists(place):
        os.rename(beside, place)
        return
    if exchange(beside, place):
        _remove(beside)
        return
    old = beside.with_name(f"{beside.name}-old")
    os.rename(place, old)
    try:
        os.rename(beside, place)
    except OSError:
        os.rename(old, place)
        raise
    _remove(old)


def exchange(one: Path, other: Path) -> bool:
    """Let two existing paths change places in one step. False: the system or the file system has no such step.

    Raises:
        OSError: they cannot change places.
    """
    call = _call()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    found = ctypes.get_errno()
    if found in _CANNOT:
        return False
    raise OSError(found, os.strerror(found), str(one), None, str(other))


def _call() -> Callable[[bytes, bytes], int] | None:
    """Return the system's call; Python's own library has none."""
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        swap = library.renamex_np
        swap.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return lambda one, other: int(swap(one, other, _EXCHANGE))
    if sys.platform.startswith("linux") and hasattr(library, "renameat2"):
        rename = library.renameat2
        rename.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return lambda one, other: int(rename(_HERE, one, _HERE, other, _EXCHANGE))
    return None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
