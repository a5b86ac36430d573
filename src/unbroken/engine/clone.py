"""A run that goes on from a checkpoint of another one, under settings of its own.

The state is the other's, the settings are those of this script, and every generator goes on with a stream
of its own: a clone that replayed its parent's randomness would be no second trial. Which one it is follows
from the parent's generator, the clone's name and the parent's checkpoint, so a clone made twice is the same.

Where the wished checkpoint is gone or damaged, the one nearest to it is taken, by name: those before it
first. Nothing live is touched before one has been read whole.

Not promised: streams of its own for generators that no root leads to, and for those of other processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from unbroken.engine.faults import EndOfProcess, FaultKind
from unbroken.engine.recovery import Attempt, RecoveryPlan, Tier
from unbroken.engine.resume import Attempts, Resumption
from unbroken.engine.settings import Settings
from unbroken.engine.source import Branches, Source
from unbroken.engine.world import World
from unbroken.errors import ConfigError, CorruptObject, InternalError, NoUsableCheckpoint, ObjectMissing
from unbroken.format.records import Commit
from unbroken.repo import pins
from unbroken.repo.repository import Repository
from unbroken.types import Digest, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A checkpoint of another run: its run, and the commit by number and by the digest of its manifest."""

    root: str | os.PathLike[str]
    job: str
    sequence: Sequence
    digest: Digest

    def __str__(self) -> str:
        return f"commit {self.sequence} of {self.job}"


def clone(
    origin: Origin, source: Source, settings: Settings, world: World | None = None, *, segment: int
) -> Resumption:
    """Bring the live objects to the state of `origin`, with the settings that the script has given them.

    Raises:
        NoUsableCheckpoint: that run holds no checkpoint that can be read.
        StateMismatch, Untrusted, RestoreFailed: as `CheckpointEngine.resume` does.
    """
    if world is not None:
        raise ConfigError(
            "A run of several ranks cannot begin as a clone.", hint="Start it without the other run."
        )
    if not isinstance(source, Branches):
        raise InternalError("This source cannot give its generators streams of their own.")
    try:
        repository = Repository.open(origin.root, origin.job)
    except ConfigError as error:
        raise NoUsableCheckpoint(
            f"The run {settings.job!r} was to go on from {origin}: {error.message}",
            hint="Give the root under which the other run lies, or start this one without a checkpoint.",
        ) from error
    reasons: list[str] = []
    commits = repository.commits()
    exact = [commit for commit in commits if _is(commit, origin)]
    if not exact:
        reasons.append(f"commit {origin.sequence}: it is gone, retention has not kept it")
    attempts = Attempts(repository, source, settings, source.skeleton(), None, segment)
    for commit in [*exact, *_nearest(commits, origin)]:
        try:
            with pins.held(
                repository.store,
                settings.job,
                commit.sequence,
                job=settings.job,
                reason=f"being loaded by {settings.job}",
            ):
                result = attempts.make(Attempt(Tier.NEWEST, commit))
        except (CorruptObject, ObjectMissing) as error:
            reasons.append(f"commit {commit.sequence} (step {commit.step:,}): {error.message}")
            continue
        source.branch(f"{settings.job}\n{commit.manifest_digest}".encode())
        return _of_its_own(result, origin, commit, settings, reasons)
    raise NoUsableCheckpoint(
        f"The run {settings.job!r} was to go on from {origin}, and nothing of that run can be used.",
        hint="Keep more checkpoints there (keep_last), or start this run without a checkpoint.",
        reasons=reasons,
    )


def _is(commit: Commit, origin: Origin) -> bool:
    return commit.sequence == origin.sequence and commit.manifest_digest == origin.digest


def _nearest(commits: Iterable[Commit], origin: Origin) -> list[Commit]:
    """Return the other good commits: those before the wished one from the newest back, then the later ones."""
    others = [commit for commit in commits if commit.good and not _is(commit, origin)]
    before = [commit for commit in others if commit.sequence < origin.sequence]
    after = [commit for commit in others if commit.sequence >= origin.sequence]
    return sorted(before, key=lambda c: -c.sequence) + sorted(after, key=lambda c: c.sequence)


def _of_its_own(
    result: Resumption, origin: Origin, commit: Commit, settings: Settings, reasons: list[str]
) -> Resumption:
    """Return what was restored as a start of this run: it has no commit of its own yet."""
    name = f"commit {commit.sequence} of {origin.job}"
    lineage = f"cloned from {name} ({commit.manifest_digest})"
    return replace(
        result,
        commit=None,
        adopted=True,
        fault=EndOfProcess(FaultKind.NONE),
        plan=RecoveryPlan((Attempt(Tier.NEWEST, commit),)),
        reasons=(*reasons, lineage),
        origin=name,
        where=settings.where,
    )
