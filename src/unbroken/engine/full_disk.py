"""A save that meets a full disk: the oldest checkpoints go, as few as make room for it, and it is written once more.

Nothing goes in vain. How many bytes the save takes is found out before, by doing it without the writing; where all that
may go would not make the room, all of it stays, and the error says how many bytes are missing.

Invariants: what stays holds a checkpoint of which every byte was read just before, and all that the save builds on.

Not promised: that several ranks write again at once. They have given this save up together; rank 0 makes the room, and
the next save finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from unbroken.engine.keeping import Holds, Keeping
from unbroken.errors import CorruptObject, RankMissing, StoreError, StoreFull
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.repo.making_room import RECORDS, Room
from unbroken.repo.pressure import Relief, Shortage, plan_relief
from unbroken.repo.retention import RetentionPlan
from unbroken.state.snapshot import Snapshot


class DiskFullWarning(UserWarning):
    """The disk was full, and checkpoints that would have stayed were deleted for the newest one."""


class Writes(Holds, Protocol):
    """What carries a snapshot into the store: the writer of a run, or of one rank's part in it."""

    @property
    def room(self) -> Room | None:
        """The room on its disk; None for one who deletes nothing."""
        ...

    def write(self, snapshot: Snapshot, meta: Meta) -> object: ...

    def record(self, plan: RetentionPlan, *, durable: float | None) -> str: ...

    def retain(self, plan: RetentionPlan) -> object: ...


def write(snapshot: Snapshot, meta: Meta, writer: Writes, keeping: Keeping) -> str:
    """Write `snapshot`; return what was deleted for it because the disk was full, an empty string if nothing was.

    Raises as `CheckpointWriter.write` does; StoreFull says how many bytes are missing.
    """
    try:
        writer.write(snapshot, meta)
    except (StoreFull, RankMissing) as error:
        room = writer.room
        if room is None:
            raise  # a rank that deletes nothing
        if isinstance(error, RankMissing) and not error.full:
            raise  # it was killed, say: more room would not bring it back
        return _written_all_the_same(snapshot, meta, writer, room, keeping, error)
    return ""


def _written_all_the_same(
    snapshot: Snapshot,
    meta: Meta,
    writer: Writes,
    room: Room,
    keeping: Keeping,
    error: StoreFull | RankMissing,
) -> str:
    try:
        short = Shortage(room.taken_by(snapshot, meta), room.free_bytes())
        if isinstance(error, RankMissing) and short.is_quota:
            raise error  # a quota of its own is what that rank met
        relief = _relief(writer, room, keeping, snapshot, short.missing)
    except (StoreError, CorruptObject) as failure:
        raise error from failure  # what went wrong first is what has to be told
    gone = relief.plan.dropped
    if gone:
        room.lighten()  # or there may be no room for the records that outlive what goes
        writer.record(relief.plan, durable=None)
        writer.retain(relief.plan)
        if room.is_alone:
            try:
                writer.write(snapshot, meta)
            except StoreFull as again:
                raise _still_full(again, replace(short, free=room.free_bytes()), gone) from error
            return (
                f"The disk was full: {_named(gone)} went, so that step {meta.step:,} could be saved."
                " Keep fewer (keep_last), or give the run more room."
            )
        raise StoreFull(
            f"{_of(error)} Of the run {_named(gone)} went, so that the next save has room.",
            hint="Start all ranks again. Keep fewer checkpoints (keep_last), or give the run more room.",
        ) from error
    raise _in_vain(error, short, relief) from error


def _relief(writer: Writes, room: Room, keeping: Keeping, snapshot: Snapshot, missing: int) -> Relief:
    """Plan what goes; see `plan_relief`."""
    commits = writer.commits()
    aside = writer.aside()
    held = keeping.held(writer, commits)
    for sequence in room.builds_on(snapshot):
        held[sequence] = "the save builds on it"
    usable = [commit for commit in commits if commit.sequence not in keeping.damaged | aside]
    for commit in usable:  # newest first
        held.setdefault(commit.sequence, "no newer one is known to be whole")
        if room.is_whole(commit):
            break
    return plan_relief(
        commits,
        missing=missing,
        freed=room.weigher(),
        keep_last=keeping.keep_last,
        best=keeping.best,
        keep_first=keeping.keep_first,
        damaged=keeping.damaged | aside,
        held=held,
    )


def _in_vain(error: StoreFull | RankMissing, short: Shortage, relief: Relief) -> StoreFull:
    """Return what is raised where nothing was deleted, since it would not have been enough."""
    # What the hint asks for includes the records that the next start writes before its first save.
    if not relief.freed:
        return StoreFull(
            f"{_of(error)} {short}, and no older checkpoint can go for it.",
            hint=f"Free {relief.missing + RECORDS:,} bytes there, then start again.",
        )
    return StoreFull(
        f"{_of(error)} {short}. All older checkpoints that may go would give {relief.freed:,}, so they stay.",
        hint=f"Free {relief.missing - relief.freed + RECORDS:,} bytes there, then start again: with these, and without"
        f" those checkpoints, it is saved. With {relief.missing + RECORDS:,} they stay.",
    )


def _still_full(error: StoreFull, short: Shortage, gone: Iterable[Commit]) -> StoreFull:
    """Return what is raised where the room that was made was not enough, or has gone to others."""
    return StoreFull(
        f"{_of(error)} {short}, although {_named(gone)} went for it.",
        hint=f"Free {short.missing + RECORDS:,} bytes there, then start again.",
        key=error.key,
    )


def _of(error: StoreFull | RankMissing) -> str:
    return error.message if error.message.endswith(".") else f"{error.message}."


def _named(gone: Iterable[Commit]) -> str:
    steps = [f"{commit.step:,}" for commit in sorted(gone, key=lambda commit: commit.sequence)]
    if len(steps) == 1:
        return f"the checkpoint of step {steps[0]}"
    return f"the checkpoints of steps {', '.join(steps[:-1])} and {steps[-1]}"
