"""Power that fails: the disks that it can leave behind, made of a recording of a whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torture.case import Case
from torture.disk_states import DiskState, disk_states
from torture.disks import laid_out, room
from torture.life import Promises, temporary_tokens, whole
from torture.recording import Event, Recording
from torture.recovery import recover
from unbroken.store.local import LocalStore


def recorded(
    system: Callable[[Path], Recording] = Recording, store: Callable[..., LocalStore] = LocalStore
) -> list[Event]:
    """Return what a whole run does to its directory, with what it was promised on the way."""
    with room() as folder:
        recording = system(folder)
        made = store(folder / "run", token=temporary_tokens(1), system=recording)
        whole(made, Promises(mark=recording.mark))
        return recording.events


def cases(events: list[Event] | None = None, *, seed: int = 0) -> Iterator[Case]:
    """Yield each disk once, with the promises that it must keep."""
    found: set[str] = set()
    for state in disk_states(recorded() if events is None else events, seed=seed):
        key = state.digest
        if key not in found:
            found.add(key)
            yield Case(
                f"power fails: {state.way}",
                f"after {state.at} calls, {state.detail}",
                key,
                partial(_run, state),
            )


def _run(state: DiskState, folder: Path) -> int:
    laid_out(state.tree, folder)
    return recover(folder / "run", Promises.of(state.marks))
