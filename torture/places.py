"""Places that go bad, for real: a small disk, one that becomes read-only, a directory that is moved away or closed.

Mounting and becoming another user need root. Where that is not permitted the kind is named as left out.
"""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from torture.case import Case
from torture.disk_states import Tree
from torture.disks import laid_out, room
from torture.life import Promises, temporary_tokens
from torture.recovery import Lost, Wrong, recover
from torture.returned import copy_of, old_run
from torture.returning_faults import TooMany, Troubled
from torture.trouble import demand_that_it_went_on, endure
from unbroken.store.local import LocalStore

NOBODY = 65534
PAGE = 4
"""KiB that the smallest file takes."""
ROOM = range(4, 260, 4)
"""KiB that are left beside the run as it was."""
AS_ANOTHER = "permission lost, as another user"
SMALL = "small disk, for real"
READ_ONLY = "disk becomes read-only, for real"
_MS_RDONLY, _MS_REMOUNT = 1, 32
_DETACH = 2


def may_mount() -> bool:
    """Whether this process may mount a disk in memory."""
    with room() as folder:
        try:
            with mounted(folder, "size=64k"):
                return True
        except OSError:
            return False


def may_be_another() -> bool:
    """Whether this process may become another user."""
    return os.geteuid() == 0


def left_out() -> dict[str, str]:
    """Return the kinds that are not possible here, and why."""
    reasons: dict[str, str] = {}
    if not may_mount():
        reasons |= dict.fromkeys((SMALL, READ_ONLY), "mounting is not permitted here")
    if not may_be_another():
        reasons[AS_ANOTHER] = "becoming another user is not permitted here"
    return reasons


def cases() -> Iterator[Case]:
    """Yield the faults that are possible here."""
    tree, promises = old_run()
    counting = Troubled()
    with room() as folder:
        _live(folder, tree, copy_of(promises), counting)
    for at, (call, path) in enumerate(counting.made):
        for again in (True, False)[at % 2 :][:1]:
            yield Case(
                f"directory moved away{' for a while' if again else ''}",
                f"call {at}: {call} {path}",
                f"moved {at} {again}",
                partial(_moved, tree, promises, at, again=again),
            )
        if may_be_another() and at % 4 == 0:
            for where in ("run", "run/packs", "run/commits"):
                yield Case(
                    AS_ANOTHER,
                    f"{where}, call {at}: {call} {path}",
                    f"closed {at} {where}",
                    partial(_as_another, partial(_closed, tree, promises, at, where)),
                )
    if may_mount():
        least = sum(PAGE if data is None else -(-len(data) // (PAGE << 10)) * PAGE for data in tree.values())
        for left in ROOM:
            yield Case(
                SMALL,
                f"{left} KiB left",
                f"small {left}",
                partial(_small, tree, promises, least + PAGE + left),
            )
        for at, (call, path) in enumerate(counting.made):
            if call in ("mkdir", "link", "unlink", "replace"):
                yield Case(
                    READ_ONLY,
                    f"call {at}: {call} {path}",
                    f"read-only {at}",
                    partial(_read_only, tree, promises, at),
                )


def _live(folder: Path, tree: Tree, promises: Promises, system: Troubled) -> None:
    laid_out(tree, folder)
    endure(LocalStore(folder / "run", token=temporary_tokens(3), system=system), promises)


def _moved(tree: Tree, promises: Promises, at: int, folder: Path, *, again: bool) -> int:
    made = copy_of(promises)
    laid_out(tree, folder)
    run, away = folder / "run", folder / "away"
    system = Troubled(at, happens=lambda: os.rename(run, away))
    over: list[bool] = []

    def back() -> None:
        over.append(system.fired)
        if again and away.exists():
            if run.exists():
                raise Wrong("a new run was begun in the place of one that was moved away")
            away.rename(run)

    trouble = endure(LocalStore(run, token=temporary_tokens(3), system=system), made, before_last=back)
    assert system.fired, "the directory was not moved"
    if again and over == [True]:
        demand_that_it_went_on(trouble, "the directory was moved away and back")
    return recover(run if run.exists() else away, made)


def _closed(tree: Tree, promises: Promises, at: int, where: str, folder: Path) -> int:
    made = copy_of(promises)
    laid_out(tree, folder / "mine")
    closed = folder / "mine" / where
    system = Troubled(at, happens=lambda: closed.chmod(0o500))
    over: list[bool] = []

    def back() -> None:
        over.append(system.fired)
        closed.chmod(0o700)

    store = LocalStore(folder / "mine" / "run", token=temporary_tokens(3), system=system)
    trouble = endure(store, made, before_last=back)
    closed.chmod(0o700)
    assert system.fired, "nothing was closed"
    if over == [True]:
        demand_that_it_went_on(trouble, "a directory was closed for a while")
    return recover(folder / "mine" / "run", made)


def _as_another(run: Callable[[Path], int], folder: Path) -> int:
    """Run it in a child that is another user: root may do everything."""
    mine = folder / "another"
    with suppress(FileExistsError):
        mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    for path in (folder, *folder.parents):
        if path.name.startswith("torture-of-disks-"):
            path.chmod(0o711)
    folder.chmod(0o711)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _be_another(run, mine, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    calls, error = pickle.loads(told)  # from our own child
    if error is not None:
        raise {"Lost": Lost, "TooMany": TooMany}.get(error[0], Wrong)(error[1])
    return int(calls)


def _be_another(run: Callable[[Path], int], mine: Path, writing: int) -> None:
    """Never returns."""
    answer: tuple[int, tuple[str, str] | None] = 0, ("Wrong", "the child did not come to its end")
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        answer = run(mine), None
    except BaseException as error:  # noqa: BLE001 - told by the parent
        answer = 0, (type(error).__name__, f"{type(error).__name__}: {error}")
    finally:
        os.write(writing, pickle.dumps(answer))
        os._exit(0)


def _small(tree: Tree, promises: Promises, size: int, folder: Path) -> int:
    made = copy_of(promises)
    with mounted(folder, f"size={size}k"):
        laid_out(tree, folder / "disk")
        store = LocalStore(folder / "disk" / "run", token=temporary_tokens(3))
        trouble = endure(store, made, before_last=lambda: _mount(folder, "size=8m", _MS_REMOUNT))
        demand_that_it_went_on(trouble, "room was made on the disk")
        return recover(folder / "disk" / "run", made)


def _read_only(tree: Tree, promises: Promises, at: int, folder: Path) -> int:
    made = copy_of(promises)
    with mounted(folder, "size=8m"):
        laid_out(tree, folder / "disk")
        changed: list[bool] = []

        def change() -> None:
            try:
                _mount(folder, "", _MS_REMOUNT | _MS_RDONLY)
                changed.append(True)
            except OSError:
                changed.append(False)  # a file is being written: the kernel refuses that, too

        system = Troubled(at, happens=change)
        store = LocalStore(folder / "disk" / "run", token=temporary_tokens(3), system=system)
        over: list[bool] = []

        def back() -> None:
            over.append(bool(changed))
            _mount(folder, "", _MS_REMOUNT)

        trouble = endure(store, made, before_last=back)
        _mount(folder, "", _MS_REMOUNT)
        if over == [True]:
            demand_that_it_went_on(trouble, "the disk was read-only for a while")
        return recover(folder / "disk" / "run", made)


@contextmanager
def mounted(where: Path, options: str) -> Generator[None, None, None]:
    """Have a disk in memory at `where` for a `with` block.

    Raises:
        OSError: it is not permitted.
    """
    _mount(where, options, 0)
    try:
        yield
    finally:
        _call(_libc().umount2(os.fsencode(where), _DETACH))


def _mount(where: Path, options: str, flags: int) -> None:
    _call(_libc().mount(b"unbroken", os.fsencode(where), b"tmpfs", flags, options.encode()))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
