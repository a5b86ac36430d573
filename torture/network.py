"""Disks on a network, injected: each quirk of `network_disk.py` at each call. Never tried on a real mount."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torture.case import Case
from torture.disk_states import Tree
from torture.disks import laid_out, room
from torture.life import Promises, temporary_tokens
from torture.network_disk import NetworkDisk, Quirk
from torture.recovery import recover
from torture.returned import copy_of, old_run
from torture.trouble import demand_that_it_went_on, endure
from unbroken.store.local import LocalStore


def cases() -> Iterator[Case]:
    """Yield each quirk at each call of a second start."""
    tree, promises = old_run()
    for quirk in Quirk:
        counting = NetworkDisk(quirk)
        with room() as folder:
            _live(folder, tree, copy_of(promises), counting)
        # Every file that is read may be stale: a third of them is enough.
        for at, (call, path) in [*enumerate(counting.made)][:: 3 if quirk is Quirk.STALE else 1]:
            yield Case(
                f"network: {quirk.value}",
                f"call {at}: {call} {path}",
                f"network {quirk.name} {at}",
                partial(_run, tree, promises, quirk, at),
            )


def _live(folder: Path, tree: Tree, promises: Promises, system: NetworkDisk) -> None:
    laid_out(tree, folder)
    endure(LocalStore(folder / "run", token=temporary_tokens(3), system=system), promises)


def _run(tree: Tree, promises: Promises, quirk: Quirk, at: int, folder: Path) -> int:
    made, system = copy_of(promises), NetworkDisk(quirk, at)
    laid_out(tree, folder)
    store = LocalStore(folder / "run", token=temporary_tokens(3), system=system)
    over: list[bool] = []
    trouble = endure(store, made, before_last=lambda: over.append(system.fired))
    assert system.fired, "the quirk has not happened"
    if over == [True]:
        demand_that_it_went_on(trouble, quirk.value)
    for path in (folder / "run").rglob(".nfs*"):
        path.unlink()  # by the client, when the file is closed
    return recover(folder / "run", made)
