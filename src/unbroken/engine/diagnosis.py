"""What the next start of a run would do, and why, found out without doing it.

The same classification and the same planner as a start's, over the same evidence; only nothing is restored. Checkpoints
are read whole in the order in which a start would try them, up to the first that can be used.

Invariant: nothing is written, locked or waited for, so that it works on what is read-only and beside a training.

Not promised: what only the script knows: whether the checkpoint fits what it builds, what its warm-up evaluation says,
and which training of several it begins with. Taken is that of the newest checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from msgspec import structs

from unbroken.engine.faults import EndOfProcess, FaultKind, classify, with_damage
from unbroken.engine.guards.counters import check_records
from unbroken.engine.metadata import not_finite_at_birth
from unbroken.engine.mirroring import (
    Lent,
    lendable,
    lost_before,
    mirror_contents,
    named_step,
    newer_than,
    wants_mirror,
    with_loss,
)
from unbroken.engine.rebuild import NOT_KEPT
from unbroken.engine.recovery import Attempt, Evidence, RecoveryPlan, Tier, Wish, of_segment
from unbroken.engine.search import search
from unbroken.engine.settings import Settings
from unbroken.engine.traces import read_traces
from unbroken.errors import CorruptObject, ObjectMissing, Rejected, UnbrokenError, UnsupportedFormat
from unbroken.format.records import Commit
from unbroken.repo import journal
from unbroken.repo.lock import await_companion, read_lease
from unbroken.repo.mirror import Contents, is_foreign
from unbroken.repo.process import Process, named_in
from unbroken.repo.pruning import plan_prune
from unbroken.repo.repository import Repository
from unbroken.repo.retention import abandoned
from unbroken.repo.vouching import Vouching, voucher
from unbroken.state.parts import split_name, view
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import SupportsLocalPath
from unbroken.store.publish import TEMPORARY
from unbroken.types import Sequence

SHOWN = 3

FindsSick = Callable[[Snapshot], Collection[str]]
"""Returns the places of weights that are not finite."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. One that is not `ok` is a person's matter; `stops` a start would not get past."""

    subject: str
    found: str
    ok: bool = True
    stops: bool = False


class Verdict(str, Enum):
    """What a start would come to."""

    GOES_ON = "goes on"
    FINISHED = "finished"
    BEGINS = "begins"
    STOPS = "stops"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a start would do, in one sentence. `step` is the one from which it would train; None where it would stop, or
    begin at a step that only the script knows."""

    verdict: Verdict
    sentence: str
    step: int | None = None

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the next start would do."""

    where: str
    outcome: Outcome
    fault: EndOfProcess
    plan: RecoveryPlan
    steps_lost: int | None = None
    lost_at_least: bool = False
    """Whether it may be more than `steps_lost`."""
    segment: int = 0
    findings: tuple[Finding, ...] = ()
    lent: frozenset[Sequence] = frozenset()
    """Those commits of the plan that a start would bring back from the mirror, under the numbers that they would get."""
    abandoned: frozenset[int] = frozenset()
    """Those before which a later start has gone back."""
    says: tuple[str, ...] = ()
    """Where the settings come from, if not from who asks."""

    @property
    def goes_on(self) -> bool:
        """Whether a start would not stop."""
        return self.outcome.verdict is not Verdict.STOPS


def examine(
    repository: Repository,
    settings: Settings,
    *,
    here: Process,
    weights: Collection[str] = (),
    sick: FindsSick = lambda _: (),
) -> Diagnosis:
    """Find out what a start with these settings would do. `sick` looks at the components `weights`."""
    traces = read_traces(repository, here)
    every = repository.commits()
    mirror = mirror_contents(settings)
    told = every or ([] if mirror is None else mirror.commits)
    segment = told[0].segment if told else 0
    wish = Wish(resume=settings.resume, worst_tier=settings.worst_tier, best=settings.best_by)
    evidence = Evidence(
        commits=of_segment(every, segment),
        rebuild="" if journal.is_there(repository.store) else NOT_KEPT,
        unreadable=tuple(str(fault) for fault in repository.broken()),
    )
    look = _Look(repository, settings, every, evidence.commits, segment, mirror, wish, weights, sick)
    found = search(evidence, wish, where=settings.where, look=look.at, ask=look.ask)
    evidence, taken = found.evidence, found.result
    condemned: Mapping[Sequence, str] = evidence.damaged
    holder = [*_holder(repository, here)]
    findings: list[Finding] = [
        *holder,
        *(() if taken is None else _key(*look.home(taken), settings)),
        *_leftovers(repository, here),
        *_room(repository, every),
        *_mirror(mirror, asked=look.asked, alone=look.alone),
    ]
    stop = next((one for one in findings if one.stops), None)
    outcome = _outcome(found.plan, stop, taken, look)
    fault = with_damage(classify(traces), (*condemned.values(), *evidence.unreadable))
    if look.lent:
        fault = with_loss(fault, Lent(where="", steps=tuple(one.step for _, one in look.lent.values())))
    if any(one.stops for one in holder):
        fault = EndOfProcess(FaultKind.NONE, "it goes on")
    lost = traces.lost(segment, taken.step) if taken is not None else None
    return Diagnosis(
        where=settings.where,
        outcome=outcome,
        fault=fault,
        plan=found.plan,
        steps_lost=lost,
        lost_at_least=taken is not None and traces.lost_at_least(segment, taken.step),
        segment=segment,
        findings=tuple(findings),
        lent=frozenset(look.lent),
        abandoned=frozenset(abandoned(sorted(evidence.commits, key=lambda one: -one.sequence))),
        says=settings.says,
    )


class _Look:
    """Looks at attempts without restoring anything, and into the mirror without bringing anything back."""

    def __init__(
        self,
        repository: Repository,
        settings: Settings,
        every: list[Commit],
        commits: Collection[Commit],
        segment: int,
        mirror: Contents | None,
        wish: Wish,
        weights: Collection[str],
        sick: FindsSick,
    ) -> None:
        self.asked = False
        """Whether a start would ask the mirror."""
        self.alone = False
        """Whether it would have nothing to go on from but what the mirror gives."""
        self.lent: dict[Sequence, tuple[Repository, Commit]] = {}
        """What it would bring back: where that lies now, by the number that it would get."""
        self._repository = repository
        self._settings = settings
        self._every = every
        self._commits = commits
        self._segment = segment
        self._mirror = mirror
        self._wish = wish
        self._weights = () if named_step(wish) is not None else weights
        self._sick = sick

    def home(self, commit: Commit) -> tuple[Repository, Commit]:
        """Return where a commit of the plan lies, and which one that is there."""
        return self.lent.get(commit.sequence, (self._repository, commit))

    def at(self, attempt: Attempt) -> Commit | None:
        """Return the checkpoint that would be restored, or on which would be rebuilt; None for a fresh start.

        Raises:
            CorruptObject: it is damaged, or there is none. Rejected: it would not be taken although it is whole.
        """
        if attempt.tier is Tier.FRESH:
            return None
        if attempt.commit is None:
            base = _base(self._repository, self._commits)
            if base is None:
                raise CorruptObject("the journal has no entry that belongs to a checkpoint")
            return base
        repository, commit = self.home(attempt.commit)
        damage, rejection = _problem(repository, commit, self._weights, self._sick)
        if damage:
            raise CorruptObject(damage)
        if rejection:
            raise Rejected(rejection)
        return attempt.commit

    def ask(self, attempt: Attempt | None, evidence: Evidence) -> Evidence | None:
        """Return the evidence with what the mirror would give, if it would be asked."""
        mirror = self._mirror
        if self.asked or mirror is None:
            return None
        step = named_step(self._wish)
        if wants_mirror(attempt, evidence, self._wish, self._every):
            lost = lost_before(attempt, evidence)
        elif (
            self._wish.resume == "never"
            or step is not None
            or not (lost := newer_than(self._every, mirror.commits))
        ):
            return None
        self.asked, self.alone = True, lost is None
        wanted = lendable(mirror.commits, step=step, lost=lost)
        if not wanted:
            return None
        root = os.fspath(self._settings.mirror)
        there = Repository.open(root, self._settings.job)
        if not self._settings.trust:  # the newest of all stops the start where nothing else is left
            wanted = [
                one
                for one in wanted
                if (self.alone and one is wanted[-1]) or not is_foreign(root, there.job, one)
            ]
        newest = max((commit.sequence for commit in self._every), default=Sequence(0))
        came = [structs.replace(one, sequence=Sequence(newest + 1 + n)) for n, one in enumerate(wanted)]
        self.lent = {new.sequence: (there, old) for new, old in zip(came, wanted, strict=True)}
        return replace(evidence, commits=of_segment([*self._every, *came], self._segment))


def _base(repository: Repository, commits: Collection[Commit]) -> Commit | None:
    """Return the newest checkpoint that can be read but for its environments, of which the journal has an entry."""
    for commit in commits:
        try:
            record, component = journal.read(repository.store, commit)
            names = {entry.component for entry in repository.manifest(commit).documents.values()}
            if (
                record.problem
                or not commit.good
                or repository.verify(commit, names - {component.name}, births=False)
            ):
                continue
        except (CorruptObject, ObjectMissing, UnsupportedFormat):
            continue
        return commit
    return None


def _outcome(plan: RecoveryPlan, stop: Finding | None, taken: Commit | None, look: _Look) -> Outcome:
    """Return what a start would do; `taken` is the checkpoint that it would restore, or build on."""
    first = plan.first
    if stop is not None:
        return Outcome(Verdict.STOPS, f"would stop: {stop.found}")
    if first is None:
        return Outcome(Verdict.STOPS, f"would stop: {plan.stop}. {plan.hint}")
    if taken is None:
        because = ", because nothing that was saved can be used" if plan.obstacles else ""
        return Outcome(Verdict.BEGINS, f"would start at the beginning{because}")
    if first.commit is None:
        return Outcome(
            Verdict.GOES_ON,
            f"would go on at step {taken.step:,}, with environments rebuilt from the journal, if they come to the same",
            taken.step,
        )
    which = "the newest checkpoint" if first.tier is Tier.NEWEST else "an older checkpoint"
    if taken.sequence in look.lent:
        which += " of the mirror, which would first be brought back"
    ended = taken.position == "end"
    verb = "would find the training finished at" if ended else "would go on at"
    verdict = Verdict.FINISHED if ended else Verdict.GOES_ON
    return Outcome(verdict, f"{verb} step {taken.step:,} from {which}", taken.step)


def _problem(
    repository: Repository, commit: Commit, weights: Collection[str], sick: FindsSick
) -> tuple[str, str]:
    """Return why a checkpoint is damaged, or why it would be rejected."""
    try:
        faults = repository.verify(commit, births=False)
        if faults:
            return faults[0].problem, ""
        meta = repository.meta(commit)
        check_records(commit, meta)
        every = [entry.component for entry in repository.manifest(commit).documents.values()]
        names = [name for name in every if split_name(name)[0] in weights]
        if not commit.good or not names:
            return "", ""
        found = set[str]()
        for rank in sorted({split_name(name)[1] or 0 for name in names}):
            held = [name for name in names if (split_name(name)[1] or 0) == rank]
            there = view(repository.load(commit, held), rank)
            found |= set(sick(there)) - not_finite_at_birth(meta, rank=rank)
    except (CorruptObject, ObjectMissing, UnsupportedFormat) as error:
        return error.message, ""
    return (
        "",
        f"its weights hold NaN or infinite values at {', '.join(sorted(found)[:SHOWN])}" if found else "",
    )


def _holder(repository: Repository, here: Process) -> Iterator[Finding]:
    lease = read_lease(repository.store)
    if lease is None:
        yield Finding("process", "none is on record")
        return
    owner = named_in(lease)
    alive = owner.is_alive(here=here)
    if alive:
        yield Finding("process", f"the run is in use by {owner}", ok=False, stops=True)
    elif alive is None:
        yield Finding(
            "process",
            f"{owner} cannot be seen from here; a start takes the run over, and where that still works it stops at"
            " its next save",
            ok=False,
        )
    else:
        yield Finding("process", f"{owner} is gone")
        companion = await_companion(repository.store, patience=0.0, here=here)
        if companion is not None:
            yield Finding("companion", f"{companion} still writes the last checkpoint; a start waits for it")


def _key(repository: Repository, commit: Commit, settings: Settings) -> Iterator[Finding]:
    try:
        said = voucher(repository.manifest(commit))
    except UnbrokenError as error:
        yield Finding("key", str(error), ok=False, stops=settings.trust is not True)
        return
    if said.verdict is Vouching.NEEDLESS:
        yield Finding("key", "none is needed: nothing in it is pickled")
    elif said.verdict.is_ours:
        yield Finding("key", f"it is {said.verdict.value} ({said.key})")
    elif settings.trust:
        whom = "all of them" if settings.trust is True else "only classes that are named"
        yield Finding("key", f"it holds pickled parts {said}; trust allows {whom}", ok=False)
    else:
        yield Finding("key", f"it holds pickled parts {said}. {said.hint}", ok=False, stops=True)


def _leftovers(repository: Repository, here: Process) -> Iterator[Finding]:
    try:
        pending = repository.pending()
        there = {(commit.segment, commit.step) for commit in repository.commits()}
        if pending is not None and (pending.segment, pending.step) not in there:
            yield Finding(
                "begun save", f"step {pending.step:,} ({pending.reason}) was begun and is not there"
            )
    except CorruptObject as error:
        yield Finding("begun save", error.message, ok=False)
    workers = repository.workers()
    if workers is not None and workers.trainer.is_alive(here=here) is False:
        left = [worker for worker in workers.workers if worker.is_alive(here=here)]
        if left:
            pids = ", ".join(str(worker.pid) for worker in left)
            yield Finding(
                "workers", f"{len(left)} of the last process still run ({pids}); a start ends them", ok=False
            )
    stale = repository.stale()
    if stale:
        yield Finding("inert commits", f"{len(stale)} of processes that had lost the run; they do not count")
    temporary = list(_temporary(repository))
    if temporary:
        size = sum(temporary)
        yield Finding("temporary files", f"{len(temporary)} with {size:,} bytes; a start sweeps old ones")
    try:
        collection = plan_prune(repository.store).collection
    except UnbrokenError as error:
        yield Finding("dead objects", f"cannot be told: {error.message}", ok=False)
        return
    if collection.keys:
        yield Finding("dead objects", f"{len(collection.keys)}; a start or a prune would {collection}")


def _temporary(repository: Repository) -> Iterator[int]:
    """Yield the sizes of files that a save has left behind unnamed."""
    if not isinstance(repository.store, SupportsLocalPath):
        return
    for folder, _, names in os.walk(repository.store.local_path()):
        for name in names:
            if name.startswith(TEMPORARY):
                try:
                    yield os.lstat(os.path.join(folder, name)).st_size
                except OSError:  # a save has given it its name meanwhile
                    continue


def _room(repository: Repository, commits: Collection[Commit]) -> Iterator[Finding]:
    if not isinstance(repository.store, SupportsLocalPath):
        return
    path: Path = repository.store.local_path()
    if not os.access(path, os.W_OK | os.X_OK):
        yield Finding("permission", f"{path} cannot be written to by this user", ok=False, stops=True)
    free = shutil.disk_usage(path).free
    needed = 0
    for commit in commits:
        try:
            needed = max(needed, repository.meta(commit).bytes)
        except (CorruptObject, ObjectMissing, UnsupportedFormat):
            continue
    enough = free >= needed
    yield Finding(
        "room",
        f"{free:,} bytes are free; a checkpoint has at most {needed:,} bytes, uncompressed"
        + ("" if enough else ": the oldest ones may have to go for the next"),
        ok=enough,
    )


def _mirror(found: Contents | None, *, asked: bool, alone: bool) -> Iterator[Finding]:
    if found is None:
        return
    subject = "mirror, needed" if asked else "mirror"
    if found.problem:
        yield Finding(subject, found.problem, ok=False, stops=alone)
        return
    steps = ", ".join(f"{commit.step:,}" for commit in found.commits)
    yield Finding(subject, f"steps in {found.where}: {steps}" if steps else found.nothing, ok=bool(steps))
