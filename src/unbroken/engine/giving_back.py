"""How the engine of one training lets go of all that it holds.

Invariant: each step is taken whatever another one raises, the run itself included; the run is given back after whatever is
written to it has ended.

Not promised: that it comes to an end while a disk does not answer. `preemption` bounds that where the process was told to end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeAlias

from unbroken.engine.companion.trainer import Companion
from unbroken.engine.dispatch import Dispatch
from unbroken.engine.seat import Seat
from unbroken.engine.snapshots import Snapshots
from unbroken.format.records import HistoryRecord

Last: TypeAlias = Callable[[list[str]], HistoryRecord]
"""Returns the last line of the history; it is given what is to be said of the mirror."""


def give_back(
    run: Seat | None,
    dispatch: Dispatch,
    snapshots: Snapshots,
    companion: Companion | None,
    *,
    last: Last | None,
    left: Callable[[], float | None],
) -> None:
    """Let go of everything, with the `last` line in the history if the training ends in order.

    `left` says how many seconds the process may still take for what is not its own; None: as many as it needs.

    Raises:
        StoreError: the line was not written; all is given back.
    """
    mirroring, dispatch.mirroring = dispatch.mirroring, None
    with ExitStack() as steps:  # taken from the last one up
        if last is not None:
            if mirroring is not None:
                steps.callback(mirroring.say)
            steps.callback(dispatch.say)
        if run is not None:
            steps.callback(run.close)
            if last is not None:
                steps.callback(_note, run, last, lambda: mirroring.summary() if mirroring is not None else [])
        steps.callback(snapshots.close)
        if companion is not None:
            steps.callback(companion.close)
        steps.callback(snapshots.let_go)
        if last is not None:
            steps.callback(dispatch.observer.ended)
        steps.callback(dispatch.progress.close)
        if mirroring is not None:
            steps.callback(mirroring.close, left=left)
        steps.callback(dispatch.writer.wait)  # whoever comes here early has not


def _note(run: Seat, last: Last, mirrored: Callable[[], list[str]]) -> None:
    run.append_history(last(mirrored()))
