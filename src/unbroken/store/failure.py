"""From errors of the operating system to errors of the store: one class for each thing to do next."""

from __future__ import annotations

import errno
import os

from unbroken.errors import ObjectMissing, StoreDenied, StoreError, StoreFull, StoreUnavailable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_SHAPE = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})


def failure(error: OSError, *, doing: str, path: str | os.PathLike[str], key: str) -> StoreError:
    """Return the store's error for `error`, which was met while `doing` something to `path`."""
    shown = os.fspath(path)
    if doing == "reading" and error.errno in (errno.ENOENT, errno.ENOTDIR):
        why = f": {_shape(error)}" if error.errno == errno.ENOTDIR else ""
        return ObjectMissing(f"There is no object {key}{why}.", key=key)
    if error.errno in _FULL:
        what = "quota" if error.errno == errno.EDQUOT else "room"
        return StoreFull(
            f"No {what} is left for {doing} {shown}.",
            hint="Free space, or keep fewer checkpoints (keep_last).",
            key=key,
        )
    if error.errno == errno.EROFS:
        return StoreDenied(
            f"{shown} is on a read-only file system.", hint="Choose another directory.", key=key
        )
    if error.errno in _DENIED:
        return StoreDenied(
            f"{doing.capitalize()} {shown} is not permitted to this user.",
            hint="Check its owner and mode.",
            key=key,
        )
    if error.errno in _SHAPE:
        return StoreError(f"{doing.capitalize()} {shown} failed: {_shape(error)}.", key=key)
    return StoreUnavailable(f"{doing.capitalize()} {shown} failed: {error.strerror or error}.", key=key)


def _shape(error: OSError) -> str:
    return {
        errno.ENOTDIR: "a part of the path is a file or a symbolic link, not a directory",
        errno.EISDIR: "it is a directory",
        errno.ELOOP: "it is a symbolic link, and links are not followed",
    }.get(error.errno or 0, "the name is too long for this file system")
