"""When the ranks of a world save, and what they tell each other of a save that could not be begun.

A save of several ranks needs all of them at the same point. Each comes to the same points in the same order, so
what decides must be the same on all: a fixed number of steps, or rank 0's wish, asked for once at each point.

Invariant: at each point every rank asks exactly once, or none does. A call that raised and is repeated asks no
second time: the others have gone on.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from unbroken.engine.schedule import Schedule
from unbroken.engine.seat import Seat
from unbroken.engine.world import World
from unbroken.engine.writer import BackgroundWriter
from unbroken.errors import RankMissing, UnbrokenError
from unbroken.format.meta import Meta
from unbroken.format.records import Position
from unbroken.repo.coordinator import reason_of
from unbroken.repo.follower import Follower
from unbroken.types import Step


class Agreement:
    """Decides for one rank whether all of them save at a point."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self._world = world
        self._schedule = schedule
        self._over: int | None = None
        """The step of a save that all ranks were to make, and that raised on this one."""

    def reason(self, step: int, episodes: int, wish: str, *, told: bool = False) -> str:
        """Return why all ranks save at this point, an empty string if they do not. `wish` is this rank's own: that of
        rank 0 counts, and of another one only that it was `told` to end, where the ranks hear of each other's."""
        over, self._over = self._over, None
        if over == step:
            return ""
        agree = self._world.agree
        if agree is not None:
            mine = bool(wish) if self._world.is_coordinator else told
            return (wish or "asked for by another rank") if agree(mine) else ""
        # What one rank alone wants, or has failed to do, the others know nothing of.
        due = self._schedule.due(step, episodes)
        if due:
            self._schedule.passed(step, episodes)  # over for all ranks, whatever becomes of it on this one
        return due

    def ends(self, *, told: bool) -> bool:
        """Return whether all ranks end after the save of this point, which every rank asks once it is to be made.
        Where they can agree the signal to any of them decides, or to rank 0 where only that one is heard; else each
        heeds its own, and all have got one."""
        agree = self._world.agree
        return told if agree is None else agree(told)

    def raised(self, step: int) -> None:
        """The save of this step has raised here; for the other ranks the point is over."""
        self._over = step


def lost_a_rank(error: BaseException) -> bool:
    """Whether a save failed because some rank said nothing: then nobody is there to be told anything."""
    return isinstance(error, RankMissing) or isinstance(error.__cause__, RankMissing)


def tell_not_begun(
    seat: Seat,
    writer: BackgroundWriter,
    error: Exception,
    *,
    step: int,
    segment: int,
    position: Position,
) -> None:
    """Spare the other ranks their timeout: this one has no part in the save of a step, and why."""
    meta = Meta(step=Step(step), segment=segment, position=position)
    if isinstance(seat, Follower):
        # Rank 0 may be about to give the order; it is answered in the background, where saves are.
        with suppress(UnbrokenError):
            writer.submit(f"step {step:,}", partial(_refuse, seat, meta, reason_of(error)))
    elif seat.coordinator is not None:
        seat.coordinator.decline(meta, error)


def _refuse(seat: Follower, meta: Meta, reason: str) -> None:
    with suppress(UnbrokenError):  # the error itself was raised; the others will find out by themselves
        seat.checkpoints.refuse(meta, reason)
