"""The start of a training: wait for what is still being written, then find out from where to go on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress

from unbroken.engine import fingerprint
from unbroken.engine.council import Member
from unbroken.engine.dispatch import SaveContext
from unbroken.engine.faults import Traces
from unbroken.engine.guards.warm_up import WarmUpTrial
from unbroken.engine.metadata import not_finite_at_birth
from unbroken.engine.mirroring import Lend, Mirroring
from unbroken.engine.rebuild import rebuilder_of
from unbroken.engine.recovery import Rebuilder
from unbroken.engine.resume import Resumption, follow_run, resume_run
from unbroken.engine.seat import Seat, voice_of
from unbroken.engine.settings import Settings
from unbroken.engine.source import KnowsThreads, RemembersRows, Source
from unbroken.engine.warnings import CompanionLeftWarning
from unbroken.engine.world import World
from unbroken.errors import (
    ConfigError,
    CorruptObject,
    Fenced,
    ObjectMissing,
    UnbrokenError,
    UnsupportedFormat,
)
from unbroken.format.records import Commit, HistoryRecord
from unbroken.repo.follower import Follower
from unbroken.repo.process import Process
from unbroken.repo.repository import Repository

MOST_TOLD = 2000
"""Characters of a reason in the history."""


def await_companion(repository: Repository) -> None:
    """Let the last process's companion commit what it was given, which is then where the run goes on."""
    left = repository.await_companion()
    if left is not None:
        warnings.warn(
            f"{left} still writes the last checkpoint of the training that was killed, and is not waited for"
            " any longer: the run goes on from the one before.",
            CompanionLeftWarning,
            stacklevel=4,
        )


def find_start(
    repository: Repository,
    seat: Seat,
    source: Source,
    settings: Settings,
    world: World | None,
    *,
    segment: int,
    rebuilder: Rebuilder | None,
    traces: Traces,
    mirroring: Mirroring | None = None,
    trial: WarmUpTrial | None = None,
) -> Resumption:
    """Find out from where the run goes on, alone or with the other ranks, and bring the live objects there.

    Raises as `CheckpointEngine.resume` does.
    """
    if trial is not None and world is not None:
        raise ConfigError(
            "Several ranks cannot try a checkpoint before they go on from it.",
            hint="Start without the warm-up evaluation, and evaluate in the training.",
        )
    if not isinstance(seat, Follower):
        # What a rank has recorded says nothing of the others.
        rebuilder = rebuilder if world is None else None
        rebuilder = rebuilder or rebuilder_of(repository, source, settings, world, segment=segment)
        council = voice_of(seat)
        lend = None if mirroring is None else Lend(mirroring, repository, seat)
        try:
            found = resume_run(
                repository, source, settings, segment=segment, rebuilder=rebuilder, traces=traces,
                world=world, council=council, lend=lend, trial=trial,
            )  # fmt: skip
            if found.left:
                seat.set_aside(readable(repository, found.left))
            if mirroring is not None and world is None:  # ranks have gone on by now: the first round takes it
                mirroring.take()
            return found
        except Exception as error:
            council.end(error)  # the others wait for the next proposal
            raise
    assert world is not None
    member = Member(seat)
    try:
        found = follow_run(repository, source, settings, segment=segment, world=world, council=member)
    except Exception as error:
        member.end(error)  # rank 0 waits for an answer
        raise
    if found.commit is None or seat.checkpoints.build_on(found.commit, found.components):
        return found
    # All have gone on by now, and nothing is lost: the first save writes everything.
    if isinstance(source, RemembersRows):
        source.forget()
    return found


def readable(repository: Repository, commits: Iterable[Commit]) -> list[Commit]:
    """Return those of which anything can be read: without its manifest a checkpoint is lost."""
    found: list[Commit] = []
    for commit in commits:
        with suppress(CorruptObject, ObjectMissing, UnsupportedFormat):
            repository.manifest(commit)
            found.append(commit)
    return found


def sick_at_first(repository: Repository, found: Resumption, world: World | None) -> frozenset[str] | None:
    """Return what weights of this process were not finite when the run began, as its checkpoints tell; None where
    it begins only now."""
    meta = found.meta
    if meta is None and found.segment > 0 and (commits := repository.commits()):
        with suppress(CorruptObject):
            meta = repository.meta(commits[0])
    return None if meta is None else not_finite_at_birth(meta, rank=0 if world is None else world.rank)


def tell_refused(run: Seat, error: BaseException, *, job: str, process: Process, time: float) -> None:
    """Keep on record that a start has stopped, and why. The error itself is on its way and says more than a failure
    to note it."""
    if not isinstance(error, UnbrokenError) or isinstance(error, Fenced):
        return
    record = HistoryRecord(
        event="refused",
        job=job,
        **process.as_owner(),
        time=time,
        reasons=[f"{type(error).__name__}: {error}"[:MOST_TOLD]],
    )
    with suppress(UnbrokenError):
        run.append_history(record)


def context_of(found: Resumption, seat: Seat, source: Source, *, segment: int) -> SaveContext:
    """Return what every save from here on says; writes the birth document that they go with, where there is none."""
    threads = source.threads() if isinstance(source, KnowsThreads) else None
    versions, around = fingerprint.versions(), fingerprint.fingerprint(threads)
    # Commits name the document they go with, so older ones are still judged by theirs.
    if found.birth is None or found.adopted or not found.restored:
        birth = seat.write_birth(found.skeleton, segment=segment)
    else:
        birth = found.birth
    inexact = found.set_apart(versions=versions, fingerprint=around)
    return SaveContext(
        birth=birth, damaged=found.damaged, inexact=inexact, versions=versions, fingerprint=around
    )
