"""Errors that the disk returns: at every call that changes something, once and for ever, before it and after it.

Two lives: the birth of a run with its first saves, and a second start that saves, retains and compacts.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torture.case import Case
from torture.disk_states import Tree
from torture.disks import laid_out, room, taken
from torture.life import Promises, first_start, temporary_tokens
from torture.recovery import recover
from torture.returning_faults import Troubled, can_return
from torture.trouble import demand_that_it_went_on, endure
from unbroken.store.local import LocalStore
from unbroken.store.system import System

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
FOR_EVER = (*CODES, errno.EROFS, errno.EACCES)
AFTER = frozenset({"create", "mkdir", "link", "replace", "unlink", "rmdir", "fsync", "write", "pwrite"})
"""Calls that can have happened although they failed."""


def old_run() -> tuple[Tree, Promises]:
    """Return a run that has had its first start, and what was promised in it."""
    promises = Promises()
    with room() as folder:
        first_start(LocalStore(folder / "run", token=temporary_tokens(1)), promises)
        return taken(folder), promises


def copy_of(promises: Promises) -> Promises:
    """Return the same promises, to which more may come."""
    return Promises(
        acknowledged=[*promises.acknowledged], given_up=[*promises.given_up], lines=promises.lines
    )


def cases() -> Iterator[Case]:
    """Yield the faults, of both lives."""
    for life, (tree, promises) in {"birth": ({}, Promises()), "second start": old_run()}.items():
        counting = Troubled()
        with room() as folder:
            _live(folder, tree, copy_of(promises), counting)
        for at, (call, path) in enumerate(counting.made):
            for code in CODES:
                if can_return(code, call):
                    yield _case(life, tree, promises, at, call, path, code)
            for code in FOR_EVER:
                if can_return(code, call):
                    yield _case(life, tree, promises, at, call, path, code, for_ever=True)
            if call in AFTER:
                yield _case(life, tree, promises, at, call, path, errno.EIO, after=True)


def _case(
    life: str,
    tree: Tree,
    promises: Promises,
    at: int,
    call: str,
    path: str,
    code: int,
    *,
    for_ever: bool = False,
    after: bool = False,
) -> Case:
    how = "for ever" if for_ever else "once, after it happened" if after else "once"
    name = errno.errorcode[code]
    make = partial(Troubled, at, code, for_ever=for_ever, after=after)
    return Case(
        f"{name} {how}",
        f"{life}, call {at}: {call} {path}",
        f"returned {life} {at} {code} {how}",
        partial(_run, tree, promises, make, once=not for_ever),
    )


def _live(folder: Path, tree: Tree, promises: Promises, system: System) -> bool:
    """Live through it; return whether the last save came out."""
    laid_out(tree, folder)
    return endure(
        LocalStore(folder / "run", token=temporary_tokens(3), system=system),
        promises,
        before_last=lambda: None,
    ).last_saved


def _run(tree: Tree, promises: Promises, make: Callable[[], Troubled], folder: Path, *, once: bool) -> int:
    made, system = copy_of(promises), make()
    laid_out(tree, folder)
    store = LocalStore(folder / "run", token=temporary_tokens(3), system=system)
    over: list[bool] = []
    trouble = endure(store, made, before_last=lambda: over.append(system.fired))
    assert system.fired, "the fault has not happened"
    if once and over == [True]:
        demand_that_it_went_on(trouble, "one failure")
    return recover(folder / "run", made)
