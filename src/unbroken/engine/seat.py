"""The place that a process has in a run: it writes the run, or takes part as another rank."""

from __future__ import annotations

from typing import TypeAlias, Union

from unbroken.engine.council import Alone, Chair, Council, Member
from unbroken.engine.settings import Settings
from unbroken.engine.world import World
from unbroken.errors import ConfigError
from unbroken.repo.follower import Follower
from unbroken.repo.process import Process
from unbroken.repo.repository import Repository
from unbroken.repo.run_writer import RunWriter

Seat: TypeAlias = Union[RunWriter, Follower]


def check_world(world: World, settings: Settings) -> None:
    """Raise ConfigError where several ranks cannot work under these settings."""
    world.check_interval(settings.interval)
    if settings.writer == "process":
        raise ConfigError(
            'writer="process" is for a process that trains alone; here there are several ranks.',
            hint='Use writer="thread".',
        )


def take_seat(repository: Repository, settings: Settings, world: World | None, owner: Process) -> Seat:
    """Take the run for writing, or a rank's part in it; of several ranks return when all are there.

    Raises:
        RunBusy: another live process writes to the run.
        RankMissing: not all ranks came in time.
    """
    if world is None or world.is_coordinator:
        ranks = None if world is None else world.ranks
        return repository.writer(
            document_format=settings.document_format, compression=settings.codec, owner=owner, patience=0.0,
            ranks=ranks,
        )  # fmt: skip
    return repository.follow(
        world.rank, world.ranks, owner=owner, document_format=settings.document_format,
        compression=settings.codec,
    )  # fmt: skip


def voice_of(seat: Seat) -> Council:
    """Return how the holder of a seat has a say in the choice of a checkpoint."""
    if isinstance(seat, Follower):
        return Member(seat)
    return Alone() if seat.coordinator is None else Chair(seat.coordinator)
