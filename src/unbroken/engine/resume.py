"""Executes the plan of a recovery: load, restore, and plan again with what failed.

Invariants: a damaged checkpoint is passed over and named; one that is whole and does not fit, or may
not be trusted, stops the start, because an older one would only hide the reason; nothing live is touched
before a checkpoint is read whole.

Not promised: speed. Every byte of the chosen checkpoint is read and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from unbroken.engine import fingerprint as prints
from unbroken.engine.council import Alone, Council, Doubted, Member, PassedOver
from unbroken.engine.faults import EndOfProcess, FaultKind, Traces, classify, with_damage
from unbroken.engine.guards.counters import check_records, check_state
from unbroken.engine.guards.finite import check_finite
from unbroken.engine.guards.warm_up import WarmUpTrial, check_same
from unbroken.engine.mirroring import Lend, Lent, named_step, with_loss
from unbroken.engine.rebuild import NOT_KEPT, trust_in
from unbroken.engine.recovery import (
    Attempt,
    BuildsOn,
    Evidence,
    Rebuilder,
    RecoveryPlan,
    Tier,
    Wish,
    of_segment,
    wish_of_segment,
)
from unbroken.engine.report import Chosen, ResumeReport, lowered
from unbroken.engine.restore import restore
from unbroken.engine.search import search
from unbroken.engine.settings import Settings
from unbroken.engine.share import find_damage, load_share
from unbroken.engine.source import RemembersRows, Source, Undresses
from unbroken.engine.world import World, speaks_for_run
from unbroken.errors import CorruptObject, NoUsableCheckpoint, StateMismatch, StoreError
from unbroken.format.meta import Meta
from unbroken.format.records import Commit, HistoryRecord, Position
from unbroken.repo.process import Process
from unbroken.repo.repository import Repository
from unbroken.repo.vouching import Voucher, voucher
from unbroken.state.pickles import Trust
from unbroken.state.snapshot import Promise, Snapshot
from unbroken.state.staging import own
from unbroken.types import Digest, Sequence, Step

LOW_BITS = "the low bits may differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a start came to. Without a restore it is still to be committed."""

    tier: Tier
    fault: EndOfProcess
    plan: RecoveryPlan
    skeleton: Snapshot
    segment: int
    step: int = 0
    commit: Commit | None = None
    meta: Meta | None = None
    restored: bool = False
    adopted: bool = False
    changes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    promises: Mapping[str, Promise] = field(default_factory=dict[str, Promise])
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    damaged: frozenset[Sequence] = frozenset()
    """Commits that were found not to load."""
    left: tuple[Commit, ...] = ()
    """Everything that a start which began anew has found, and could not go on from."""
    steps_lost: int | None = None
    lost_at_least: bool = False
    """Whether more may have been lost."""
    where: str = ""
    origin: str = ""
    """The checkpoint of another run that this one goes on from."""
    birth: Digest | None = None
    """The birth document that the settings of this process were saved with."""
    components: tuple[str, ...] = ()
    """What was restored of the commit, by the names under which it holds that."""
    inexact: str = ""
    """What a changed number of ranks costs."""
    allowed: tuple[str, ...] = ()
    """What was allowed to differ although the run is not exact with it."""
    tried: bool = False
    """Whether a warm-up evaluation has looked at it."""
    chosen: Chosen | None = None
    """Why it is this checkpoint, where it is not the newest."""
    lent: Lent | None = None
    """What came of asking the mirror, if it was asked."""

    @property
    def episodes(self) -> int:
        return self.meta.episodes if self.meta is not None else 0

    def _counted(self) -> Mapping[str, object]:
        """Return what the checkpoint's metadata counts, if it is of this very step: what was rebuilt has more."""
        if self.commit is None or self.commit.step != self.step:
            return {}
        return {"episodes": self.episodes}

    @property
    def position(self) -> Position:
        return self.commit.position if self.commit is not None else ("step" if self.restored else "start")

    def at_start(self, step: int, state: Snapshot) -> Resumption:
        """Return this fresh start with what its first checkpoint says."""
        return replace(self, step=step, promises=dict(state.promises), facts=dict(state.counters))

    def set_apart(self, *, versions: Mapping[str, str], fingerprint: Mapping[str, str]) -> tuple[str, ...]:
        """Return what sets the run apart from an undisturbed one, from here on and for ever."""
        before = [] if self.meta is None else self.meta.inexact
        around = [f"{LOW_BITS}: {phrase}" for phrase in self._differing(versions, fingerprint)]
        ranks = [self.inexact] if self.inexact else []
        return tuple(dict.fromkeys([*before, *around, *ranks, *self.allowed]))

    def _differing(self, versions: Mapping[str, str], fingerprint: Mapping[str, str]) -> list[str]:
        if self.meta is None:
            return []
        saved = {name: str(value) for name, value in self.meta.fingerprint.items()}
        return list(prints.differences(saved, fingerprint, self.meta.versions, versions))

    def report(
        self,
        *,
        versions: Mapping[str, str],
        fingerprint: Mapping[str, str],
        seconds: float,
        also: tuple[str, ...] = (),
    ) -> ResumeReport:
        """Return the report; where the surroundings changed no part is exact any more. `also` goes into its line."""
        warnings = [f"{phrase}: {LOW_BITS}" for phrase in self._differing(versions, fingerprint)]
        if self.inexact:
            warnings.append(f"{self.inexact}; the run is no longer exact")
        inexact = self.set_apart(versions=versions, fingerprint=fingerprint)
        return ResumeReport(
            tier=self.tier,
            fault=self.fault,
            step=self.step,
            plan=self.plan,
            commit=self.commit,
            position=self.position,
            segment=self.segment,
            changes=self.changes,
            reasons=self.reasons,
            warnings=tuple(warnings),
            promises=lowered(self.promises, inexact),
            inexact=inexact,
            facts={**self._counted(), **self.facts},
            steps_lost=self.steps_lost,
            lost_at_least=self.lost_at_least,
            seconds=seconds,
            where=self.where,
            origin=self.origin,
            tried=self.tried,
            chosen=self.chosen,
            lent=self.lent,
            left=bool(self.left),
            also=also,
        )

    @property
    def _asked(self) -> str:
        """What a person has asked for; what came after it is done again, and nothing was wrong with it."""
        if self.chosen is Chosen.STEP:
            return f"resume={self.step} asked for this step"
        return 'resume="best" asked for the best checkpoint' if self.chosen is Chosen.BEST else ""

    def history(self, report: ResumeReport, *, job: str, process: Process, time: float) -> HistoryRecord:
        """Return the line of this start for `history.jsonl`."""
        return HistoryRecord(
            event="start",
            job=job,
            **process.as_owner(),
            time=time,
            fault="" if self.fault.kind is FaultKind.NONE else self.fault.kind.value,
            tier=self.tier.value,
            sequence=self.commit.sequence if self.commit is not None else 0,
            step=Step(self.step),
            steps_lost=-1 if self.steps_lost is None else self.steps_lost,
            lost_at_least=self.lost_at_least or msgspec.UNSET,
            seconds=report.seconds,
            reasons=[*filter(None, [self._asked, str(self.lent or "")]), *self.reasons],
            changes=list(self.changes),
        )


def resume_run(
    repository: Repository,
    source: Source,
    settings: Settings,
    *,
    segment: int,
    rebuilder: Rebuilder | None,
    traces: Traces,
    world: World | None = None,
    council: Council | None = None,
    lend: Lend | None = None,
    trial: WarmUpTrial | None = None,
) -> Resumption:
    """Find out from where this segment goes on, and bring the live objects there. Of several ranks it is
    rank 0 that finds out, and the `council` that agrees. `lend` has a mirror bring back what is lost here.

    Raises as `CheckpointEngine.resume` does.
    """
    every = repository.commits()
    wish = wish_of_segment(
        Wish(resume=settings.resume, worst_tier=settings.worst_tier, best=settings.best_by), every, segment
    )
    evidence = Evidence(
        commits=of_segment(every, segment),
        unreadable=tuple(str(fault) for fault in repository.broken()) if segment == 0 else (),
        rebuild=NOT_KEPT if rebuilder is None else rebuilder.available(),
    )
    attempts = Attempts(
        repository, source, settings, _skeleton(source, world), rebuilder, segment, world, council or Alone(), trial
    )  # fmt: skip
    attempts.prepare()
    spared: set[Sequence] = set()
    lent: list[Lent] = []
    before = frozenset(commit.sequence for commit in every)

    def look(attempt: Attempt) -> Resumption:
        try:
            return attempts.make(attempt)
        except Doubted as doubt:
            if not _confirmed(repository, attempt, doubt, world):
                assert attempt.commit is not None
                spared.add(attempt.commit.sequence)
            raise

    def ask(attempt: Attempt | None, evidence: Evidence) -> Evidence | None:
        wanted = None if lend is None or lent else lend.wanted(attempt, evidence, wish)
        if lend is None or wanted is None:
            return None
        lent.append(lend.bring_back(*wanted))
        return replace(evidence, commits=of_segment(repository.commits(), segment))

    found = search(evidence, wish, where=settings.where, look=look, ask=ask)
    plan, evidence, result = found.plan, found.evidence, found.result
    if result is None:
        raise NoUsableCheckpoint(
            f"The run {settings.job!r} cannot go on: {plan.stop}.",
            hint=plan.hint,
            reasons=[*plan.obstacles, *evidence.unreadable, *filter(None, map(str, lent))],
        )
    # What others cannot use and rank 0 can read is passed over and stays: it may be whole.
    condemned = {number: why for number, why in evidence.damaged.items() if number not in spared}
    helped = lent[0] if lent else None
    damage = (*condemned.values(), *evidence.unreadable)
    return replace(
        result,
        plan=plan,
        fault=with_loss(with_damage(classify(traces), damage), helped),
        # Saved again at the next clean point: else a later start without the wish would go on from what it left.
        adopted=result.adopted or _went_back(result, wish, evidence),
        reasons=(*plan.obstacles, *evidence.unreadable, *result.reasons),
        damaged=frozenset(condemned),
        left=tuple(repository.commits()) if _begins_anew(result, wish, evidence) else (),
        steps_lost=_steps_lost(traces, result),
        lost_at_least=result.restored and traces.lost_at_least(result.segment, result.step),
        where=settings.where,
        chosen=_chosen(result, wish, evidence, before),
        lent=helped,
    )


def _chosen(result: Resumption, wish: Wish, evidence: Evidence, before: frozenset[Sequence]) -> Chosen | None:
    """Return why it is this checkpoint; `before` are those that there were before a mirror has helped."""
    taken = result.commit
    if taken is None or result.tier is Tier.REBUILT:
        return None
    if taken.sequence not in before:
        return Chosen.MIRROR
    if named_step(wish) is not None:
        return Chosen.STEP
    best = wish.best if wish.resume == "best" else None
    return Chosen.BEST if best is not None and best.choose(evidence.commits) == taken else None


def _begins_anew(result: Resumption, wish: Wish, evidence: Evidence) -> bool:
    """Whether it starts from the beginning although there was something, and nobody has asked for that by name."""
    return (
        result.tier is Tier.FRESH and wish.resume != "never" and bool(evidence.commits or evidence.unreadable)
    )


def _went_back(result: Resumption, wish: Wish, evidence: Evidence) -> bool:
    """Whether a person has gone back before checkpoints that can be used."""
    chosen = result.commit
    if chosen is None or not (wish.resume == "best" or isinstance(wish.resume, int)):
        return False
    return any(c.sequence > chosen.sequence and c.sequence not in evidence.damaged for c in evidence.commits)


def _skeleton(source: Source, world: World | None) -> Snapshot:
    found = source.skeleton()
    if world is not None:
        world.check_replicated(found.components.keys())
    return found


def follow_run(
    repository: Repository,
    source: Source,
    settings: Settings,
    *,
    segment: int,
    world: World,
    council: Member,
) -> Resumption:
    """Bring the live objects of a rank to where rank 0 has found that the run goes on.

    Raises as `CheckpointEngine.resume` does.
    """
    attempts = Attempts(repository, source, settings, _skeleton(source, world), None, segment, world, council)
    while True:
        sequence = council.heard()
        try:
            council.propose(sequence)
            try:
                attempt = _attempt(repository, council, sequence)
            except Exception as error:
                council.failed(error)
                raise
            result = attempts.make(attempt)
        except PassedOver:
            continue
        return replace(result, plan=RecoveryPlan((attempt,)), where=settings.where)


def _attempt(repository: Repository, council: Member, sequence: int) -> Attempt:
    """Return the attempt that rank 0 has proposed."""
    if not sequence:
        return Attempt(Tier.FRESH, None)
    commit = council.commit(sequence)
    newest = max((found.sequence for found in repository.commits()), default=0)
    return Attempt(Tier.OLDER if newest > sequence else Tier.NEWEST, commit)


def _confirmed(repository: Repository, attempt: Attempt, doubt: Doubted, world: World | None) -> bool:
    """Whether rank 0 finds damage, too, where others say that they have found some.

    Nobody else may condemn a commit: a rank sees the store by a view of its own, which may lag behind or be
    broken, and what is condemned is deleted.
    """
    assert world is not None
    assert attempt.commit is not None
    try:
        return any(find_damage(repository, attempt.commit, world, rank) for rank in doubt.damaged)
    except StoreError:
        return False


def _steps_lost(traces: Traces, result: Resumption) -> int | None:
    """Return how many steps are done again, as far as it is known."""
    if not result.restored:
        return None
    lost = traces.lost(result.segment, result.step)
    # Where a training has come to its end nothing of it was left to do.
    return 0 if lost is None and result.position == "end" else lost


@dataclass(frozen=True, slots=True)
class Attempts:
    """Loads checkpoints of one run, one at a time, and lays them over the live objects of one source."""

    repository: Repository
    source: Source
    settings: Settings
    skeleton: Snapshot
    rebuilder: Rebuilder | None
    segment: int
    world: World | None = None
    council: Council = field(default_factory=Alone)
    trial: WarmUpTrial | None = None

    def prepare(self) -> None:
        """Copy the objects as the script has built them, where a trial may spoil them and the run start anew."""
        if self.trial is not None and self.settings.worst_tier == Tier.FRESH.value:
            self.trial.twin = own(self.source.capture())

    def make(self, attempt: Attempt) -> Resumption:
        """Make one attempt. Raises CorruptObject or ObjectMissing if the next one may be made."""
        self.council.propose(attempt.commit.sequence if attempt.commit is not None else 0)
        try:
            return self._make(attempt)
        except Exception as error:
            self.council.failed(error)
            raise

    def _make(self, attempt: Attempt) -> Resumption:
        start = Resumption(
            tier=attempt.tier,
            fault=EndOfProcess(FaultKind.NONE),
            plan=RecoveryPlan(()),
            skeleton=self.skeleton,
            segment=self.segment,
        )
        if attempt.tier is Tier.FRESH:
            self._as_built()
            self.council.ready()
            return start
        result = self._once(start, attempt.commit)
        if self.trial is None or self._by_name or not self.trial.is_due(attempt.tier):
            return result
        if isinstance(self.source, Undresses):
            self.source.undress()  # what the first restore has put there would be restored away
        before = self.source.skeleton()
        self.trial.run()
        again = self._once(start, attempt.commit)
        if isinstance(self.source, Undresses):
            self.source.undress()
        check_same(self.source, before, self.source.skeleton())
        # What the second restore has taken away is no news: the trial had put it there.
        return replace(again, changes=result.changes, tried=True)

    @property
    def _by_name(self) -> bool:
        """Whether a person has named the step: then it is taken as it is."""
        return isinstance(self.settings.resume, int)

    def _as_built(self) -> None:
        """Undo what was restored for trials."""
        trial = self.trial
        if trial is None or not trial.used or trial.twin is None:
            return
        restore(self.source, trial.twin, birth=None, now=self.skeleton, trusted=True)
        if isinstance(self.source, RemembersRows):
            self.source.forget()  # it was in no checkpoint

    def _once(self, start: Resumption, commit: Commit | None) -> Resumption:
        if commit is None:
            return self._rebuilt(start)
        share = load_share(self.repository, commit, self.world)
        if share.inexact and self.settings.strict:
            raise StateMismatch(
                "The checkpoint was written by another number of ranks, and strict=True demands the same.",
                hint="Start with the former number, or with strict=False.",
                differences=[share.inexact],
            )
        trusted = trust_in(self.repository, commit, self.settings)
        meta = self.repository.meta(commit)
        share.snapshot.python = meta.versions.get("python", "")
        self._check(commit, meta, share.snapshot)
        result = self._restore(
            start, share.snapshot, commit, step=commit.step, trusted=trusted, born=share.birth
        )
        return replace(
            result,
            commit=commit,
            meta=meta,
            birth=share.birth,
            components=share.components,
            inexact=share.inexact,
            changes=((share.inexact, *result.changes) if share.inexact else result.changes),
        )

    def _rebuilt(self, start: Resumption) -> Resumption:
        assert self.rebuilder is not None
        saved, step = self.rebuilder.rebuild()
        if not isinstance(self.rebuilder, BuildsOn) or self.rebuilder.base is None:
            return self._restore(start, saved, None, step=step, trusted=False)
        base, passed_over = self.rebuilder.base, self.rebuilder.passed_over
        meta = self.repository.meta(base)
        saved.python = meta.versions.get("python", "")
        self._check(base, meta, saved)
        born = Digest(base.birth) if base.birth else None
        trusted = trust_in(self.repository, base, self.settings)
        result = self._restore(start, saved, base, step=step, trusted=trusted, born=born)
        # Adopted: what was rebuilt is in no checkpoint that can be read, so the next clean point saves it.
        return replace(result, commit=base, meta=meta, birth=born, adopted=True, reasons=passed_over)

    def _check(self, commit: Commit, meta: Meta, saved: Snapshot) -> None:
        """Look whether what was read makes sense, before anything live is touched. The counts in the metadata are
        those of rank 0; weights each rank has of its own.

        Raises:
            CorruptObject: it does not. Rejected: it is whole, and not good enough.
        """
        check_records(commit, meta)
        if speaks_for_run(self.world):
            check_state(self.source, saved, commit, meta)
        if commit.good and not self._by_name:
            check_finite(self.source, saved, meta, rank=0 if self.world is None else self.world.rank)

    def _restore(
        self,
        start: Resumption,
        saved: Snapshot,
        commit: Commit | None,
        *,
        step: int,
        trusted: Trust,
        born: Digest | None = None,
    ) -> Resumption:
        birth, lost = self._birth(commit, born)
        restored = restore(
            self.source,
            saved,
            birth=birth,
            now=self.skeleton,
            strict=self.settings.strict,
            allowed=self.settings.allow_changed,
            trusted=trusted,
            agreed=self.council.ready,
            validate=self.settings.validate,
            voucher=None if commit is None else partial(self._voucher, commit),
        )
        return replace(
            start,
            step=step,
            restored=True,
            # What cannot be read is written anew: this script is what the run goes on with.
            adopted=restored.adopted or bool(lost),
            changes=(*lost, *restored.reports),
            allowed=restored.inexact,
            promises=dict(restored.state.promises),
            facts=dict(restored.state.counters),
        )

    def _voucher(self, commit: Commit) -> Voucher:
        return voucher(self.repository.manifest(commit))

    def _birth(self, commit: Commit | None, born: Digest | None) -> tuple[Snapshot | None, tuple[str, ...]]:
        """Return what the settings in `commit` were born with, or why nobody can say it any more.

        Each commit has its own: an older one was saved before the user's last change, and would be
        taken for unchanged if it were judged by the newest.
        """
        try:
            if commit is None:  # rebuilt: from what the newest checkpoint of the segment goes with
                commit = next(iter(of_segment(self.repository.commits(), self.segment)), None)
                born = Digest(commit.birth) if commit is not None and commit.birth else None
            return (None if born is None else self.repository.birth_named(born)), ()
        except CorruptObject as error:
            lost = f"the birth document is damaged, so changed settings do not show ({error.message})"
        if self.settings.strict:
            raise StateMismatch(
                "It cannot be told whether settings were changed, and strict=True demands it.",
                hint="Start with strict=False.",
                differences=[lost],
            )
        return None, (lost,)
