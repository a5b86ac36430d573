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
from pathlib import Path

from unbroken.engine.faults import EndOfProcess, FaultKind, classify, with_damage
from unbroken.engine.guards.counters import check_records
from unbroken.engine.metadata import NOT_FINITE
from unbroken.engine.mirroring import mirror_contents, wants_mirror
from unbroken.engine.rebuild import NOT_KEPT
from unbroken.engine.recovery import Evidence, RecoveryPlan, Tier, Wish, of_segment, plan_recovery
from unbroken.engine.settings import Settings
from unbroken.engine.traces import read_traces
from unbroken.errors import CorruptObject, ObjectMissing, UnbrokenError, UnsupportedFormat
from unbroken.format.records import Commit
from unbroken.repo import journal
from unbroken.repo.lock import await_companion, read_lease
from unbroken.repo.process import Process, named_in
from unbroken.repo.pruning import plan_prune
from unbroken.repo.repository import Repository
from unbroken.state.parts import split_name
from unbroken.state.snapshot import Snapshot
from unbroken.store.base import SupportsLocalPath
from unbroken.store.publish import TEMPORARY
from unbroken.types import Sequence

SHOWN = 3
STOP = "would stop"

FindsSick = Callable[[Snapshot], Collection[str]]
"""Returns the places of weights that are not finite."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. One that is not `ok` is a person's matter; `stops` a start would not get past."""

    subject: str
    found: str
    ok: bool = True
    stops: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the next start would do. `outcome` is the one sentence."""

    where: str
    outcome: str
    goes_on: bool
    fault: EndOfProcess
    plan: RecoveryPlan
    steps_lost: int | None = None
    segment: int = 0
    findings: tuple[Finding, ...] = ()


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
    segment = every[0].segment if every else 0
    wish = Wish(resume=settings.resume, worst_tier=settings.worst_tier, best=settings.best_by)
    recorded = journal.is_there(repository.store)
    evidence = Evidence(
        commits=of_segment(every, segment),
        rebuild="" if recorded else NOT_KEPT,
        unreadable=tuple(str(fault) for fault in repository.broken()),
    )
    named = isinstance(settings.resume, int)
    base: Commit | None = None
    while True:
        plan = plan_recovery(evidence, wish, where=settings.where)
        commit = None if plan.first is None else plan.first.commit
        if commit is None:
            base = _base(repository, evidence.commits) if _is_rebuilding(plan) else None
            if base is None and _is_rebuilding(plan):
                evidence = replace(evidence, rebuild="the journal has no entry that belongs to a checkpoint")
                continue
            break
        damage, rejection = _problem(repository, commit, () if named else weights, sick)
        if not damage and not rejection:
            break
        if damage:
            evidence = replace(evidence, damaged={**evidence.damaged, commit.sequence: damage})
        else:
            evidence = replace(evidence, rejected={**evidence.rejected, commit.sequence: rejection})
    condemned: Mapping[Sequence, str] = evidence.damaged
    fault = with_damage(classify(traces), (*condemned.values(), *evidence.unreadable))
    taken = commit or base
    findings: list[Finding] = [
        *_holder(repository, here),
        *(() if taken is None else _key(repository, taken, settings)),
        *_leftovers(repository, here),
        *_room(repository, every),
    ]
    wants = wants_mirror(plan.first, evidence, wish, every)
    mirror = [*_mirror(settings, wants=wants)]
    findings += mirror
    stop = next((one for one in findings if one.stops), None)
    outcome = _outcome(plan, stop, mirror[0] if wants and mirror and mirror[0].ok else None, base)
    if findings[0].stops:
        fault = EndOfProcess(FaultKind.NONE, "it goes on")
    lost = traces.lost(segment, taken.step) if taken is not None else None
    return Diagnosis(
        where=settings.where,
        outcome=outcome,
        goes_on=not outcome.startswith(STOP),
        fault=fault,
        plan=plan,
        steps_lost=lost,
        segment=segment,
        findings=tuple(findings),
    )


def _is_rebuilding(plan: RecoveryPlan) -> bool:
    return plan.first is not None and plan.first.tier is Tier.REBUILT


def _base(repository: Repository, commits: Collection[Commit]) -> Commit | None:
    """Return the newest checkpoint that can be read but for its environments, of which the journal has an entry."""
    for commit in commits:
        try:
            record, component = journal.read(repository.store, commit)
            names = {entry.component for entry in repository.manifest(commit).documents.values()}
            if record.problem or not commit.good or repository.verify(commit, names - {component.name}):
                continue
        except (CorruptObject, ObjectMissing, UnsupportedFormat):
            continue
        return commit
    return None


def _outcome(plan: RecoveryPlan, stop: Finding | None, mirror: Finding | None, base: Commit | None) -> str:
    """Return what a start would do. A `mirror` that is asked has something to bring back; a rebuilt state has a `base`."""
    first = plan.first
    if stop is not None:
        return f"{STOP}: {stop.found}"
    if mirror is not None:
        return f"would first bring back from the mirror what is better than what is here ({mirror.found})"
    if first is None:
        return f"{STOP}: {plan.stop}. {plan.hint}"
    if first.commit is not None:
        which = "the newest checkpoint" if first.tier is Tier.NEWEST else "an older checkpoint"
        ended = first.commit.position == "end"
        verb = "would find the training finished at" if ended else "would go on at"
        return f"{verb} step {first.commit.step:,} from {which}"
    if base is not None:
        return f"would go on at step {base.step:,}, with environments rebuilt from the journal, if they come to the same"
    if plan.obstacles:
        return "would start at the beginning, because nothing that was saved can be used"
    return "would start at the beginning"


def _problem(
    repository: Repository, commit: Commit, weights: Collection[str], sick: FindsSick
) -> tuple[str, str]:
    """Return why a checkpoint is damaged, or why it would be rejected."""
    try:
        faults = repository.verify(commit)
        if faults:
            return faults[0].problem, ""
        meta = repository.meta(commit)
        check_records(commit, meta)
        names = [name for name in repository.manifest(commit).documents if split_name(name)[0] in weights]
        held = [name for name in names if split_name(name)[1] in (None, 0)]
        if not commit.good or not held:
            return "", ""
        found = set(sick(repository.load(commit, held))) - set(meta.counters.get(NOT_FINITE, ()))
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
        valid = repository.signature_valid(commit)
    except UnbrokenError as error:
        yield Finding("key", str(error), ok=False, stops=settings.trust is not True)
        return
    if valid is None:
        yield Finding("key", "none is needed: nothing in it is pickled")
    elif valid:
        yield Finding("key", "it is signed with a key that is held here")
    elif settings.trust:
        whom = "all of them" if settings.trust is True else "only classes that are named"
        yield Finding("key", f"pickled parts without a valid signature; trust allows {whom}", ok=False)
    else:
        yield Finding(
            "key",
            "it holds pickled parts and no valid signature; set UNBROKEN_KEY to the key of its writer, or trust it",
            ok=False,
            stops=True,
        )


def _leftovers(repository: Repository, here: Process) -> Iterator[Finding]:
    try:
        pending = repository.pending()
        if pending is not None and not any(commit.step == pending.step for commit in repository.commits()):
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
        + ("" if enough else ", and a save may fail"),
        ok=enough,
    )


def _mirror(settings: Settings, *, wants: bool) -> Iterator[Finding]:
    found = mirror_contents(settings)
    if found is None:
        return
    subject = "mirror, needed" if wants else "mirror"
    if found.problem:
        yield Finding(subject, found.problem, ok=False)
        return
    steps = ", ".join(f"{commit.step:,}" for commit in found.commits) or "none"
    yield Finding(subject, f"steps in {found.where}: {steps}", ok=bool(found.commits))
