"""From errors of the operating system to errors of the store: one class for each thing to do next."""

from __future__ import annotations

import errno
import os
import stat

from unbroken.errors import ObjectBlocked, ObjectMissing, StoreDenied, StoreError, StoreFull, StoreUnavailable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_SHAPE = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
_FORMS = {
    stat.S_IFLNK: "a symbolic link, and links are not followed",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe, not a regular file",
    stat.S_IFSOCK: "a socket, not a regular file",
}


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
    if error.errno == errno.EFBIG:
        return StoreDenied(
            f"{doing.capitalize()} {shown} would pass the largest file that is allowed here.",
            hint="Raise the limit (`ulimit -f`), or choose a file system without one.",
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
    if error.errno == errno.EISDIR:
        return ObjectBlocked(
            f"{doing.capitalize()} {shown} failed: it is a directory.", hint="Move it away.", key=key
        )
    if error.errno in _SHAPE:
        return StoreError(f"{doing.capitalize()} {shown} failed: {_shape(error)}.", key=key)
    return StoreUnavailable(f"{doing.capitalize()} {shown} failed: {error.strerror or error}.", key=key)


def in_the_way(
    name: str, *, directory: int, doing: str, path: str | os.PathLike[str], key: str
) -> ObjectBlocked | None:
    """Return that what bears `name` in an open directory is no file, or one that may not be read; else None."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return None
    if not stat.S_ISREG(mode):
        return blocked_by(mode, doing=doing, path=path, key=key)
    by_effective = os.access in os.supports_effective_ids
    if doing == "reading" and not os.access(name, os.R_OK, dir_fd=directory, effective_ids=by_effective):
        return ObjectBlocked(
            f"Reading {os.fspath(path)} failed: this user may not read it.",
            hint="Check its owner and mode.",
            key=key,
        )
    return None


def blocked_by(mode: int, *, doing: str, path: str | os.PathLike[str], key: str) -> ObjectBlocked:
    """Return that what stands in the place of an object, by its `mode`, is no file."""
    form = _FORMS.get(stat.S_IFMT(mode), "a device, not a regular file")
    return ObjectBlocked(f"{doing.capitalize()} {os.fspath(path)} failed: it is {form}.", key=key)


def _shape(error: OSError) -> str:
    return {
        errno.ENOTDIR: "a part of the path is a file or a symbolic link, not a directory",
        errno.ELOOP: "it is a symbolic link, and links are not followed",
    }.get(error.errno or 0, "the name is too long for this file system")
