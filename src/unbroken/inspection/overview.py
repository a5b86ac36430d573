"""One run at a glance: how it stands, what its saves say, where it was interrupted, and what its checkpoints cost.

Frozen records for whoever draws them. Stable: the names and fields here; fields may be added. What is quick (`standing_of`,
`story_of`) and what reads every manifest (`checkpoint_rows`) are functions of their own; `overview_of` is all of them.

Invariant: nothing is written or locked, and a training that deletes checkpoints meanwhile is no error.

Not promised: that a process on another machine lives. There its last sign of life is held against the clock, and only there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias

from unbroken.engine.metadata import MAX_OVERHEAD
from unbroken.errors import UnbrokenError
from unbroken.format.records import HistoryRecord, Lease, Position
from unbroken.inspection.listing import Listed, checkpoints
from unbroken.inspection.target import Target
from unbroken.repo.lock import await_companion, read_lease
from unbroken.repo.process import Process, current, named_in
from unbroken.repo.repository import Repository
from unbroken.repo.usage import RunCost, measure

State: TypeAlias = Literal["running", "stale", "crashed", "stopped", "finished", "empty"]
"""How a run stands.

| state | meaning |
|---|---|
| `running` | a process works on it |
| `stale` | a process of another machine holds it and has given no sign of life for long |
| `crashed` | its last process is gone without closing it |
| `stopped` | its last process closed it before the end of the training: a signal, an exception, an early return |
| `finished` | its newest checkpoint is the end of a training |
| `empty` | nothing was saved yet |
"""

PATIENCE = 900.0
"""Seconds without a sign of life after which a process that cannot be seen from here counts as stale, at least."""
GAPS = 5
"""It counts as stale no sooner than after so many times the longest time between two saves."""
NOT_KILLED = ("", "none", "clean")
"""Ends of a process that are no interruption."""

_ORDER: Mapping[str, int] = {"start": 0, "step": 1, "end": 2}


@dataclass(frozen=True, slots=True)
class SavePoint:
    """One save. Times are in seconds, sizes in bytes; None: nobody knows."""

    sequence: int
    """Of its commit; 0: it was saved by the run that this one was copied from."""
    step: int
    """As the training counts, which begins anew in a later segment if the script says so."""
    at: int
    """Where it stands on the axis of global steps: the segments one after the other."""
    segment: int
    position: Position
    time: float
    """Since 1970-01-01 UTC."""
    epoch: int
    reason: str
    metrics: Mapping[str, float]
    good: bool
    """False: NaN or infinity in the weights."""
    blocked: float | None
    """How long training stood still for it."""
    durable: float | None
    """How long the writer took until the checkpoint existed."""
    bytes: int | None
    """All that it holds, uncompressed."""
    written: int | None
    """What was new on the disk."""
    inexact: int | None
    """How many components are not exact."""
    abandoned: bool
    """A later start went back before this save, or to the same point again."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A line of the history: a start, an end in order, or a start that was refused."""

    time: float
    event: Literal["start", "end", "refused"]
    first: bool
    """The first start of the run: nothing had been interrupted."""
    step: int
    at: int
    """The step on the axis of `SavePoint.at`: of a start, where it went on."""
    fault: str
    """How the process before had ended: clean, soft, hard, data; empty on a first start, and unless `event` is start."""
    tier: str
    """How far recovery fell: newest, older, rebuilt, fresh."""
    sequence: int
    """The commit that was restored; 0: none."""
    steps_lost: int | None
    """Steps that had to be done again; None: nobody knows."""
    at_least: bool
    """Whether there may have been more of them."""
    seconds: float
    """From when the run was opened, waiting included, until training could go on."""
    reasons: tuple[str, ...]
    changes: tuple[str, ...]
    process: str
    idle: bool = False
    """A start that found its training finished, and added nothing."""

    @property
    def interrupted(self) -> bool:
        """Whether it is a start that went on after a process that had not closed the run."""
        return self.went_on and self.fault not in NOT_KILLED

    @property
    def went_on(self) -> bool:
        """Whether it is a start that went on with what was there."""
        return self.event == "start" and not self.first and not self.idle


@dataclass(frozen=True, slots=True)
class Interruptions:
    """How often a run was interrupted, and what that has cost. The last one counts before anybody has gone on."""

    count: int
    kinds: Mapping[str, int]
    """Class of the fault -> how often; the last one is of no class while nobody has gone on."""
    known: int
    """Steps that are known to be lost."""
    unknown: int
    """At how many interruptions nobody knows, or knows only that there were so many at least."""

    @property
    def steps_lost(self) -> int | None:
        """Steps lost; None where nothing is known."""
        return None if self.unknown and not self.known else self.known


def interruptions(story: Story, state: State) -> Interruptions:
    """Return how often a run was interrupted."""
    cut = [one for one in story.restarts if one.interrupted]
    lost = [one.steps_lost for one in story.restarts if one.went_on]
    pending = state == "crashed"
    return Interruptions(
        count=len(cut) + pending,
        kinds=dict(sorted(Counter(one.fault for one in cut).items())),
        known=sum(steps or 0 for steps in lost),
        unknown=sum(one.steps_lost is None or one.at_least for one in story.restarts if one.went_on)
        + pending,
    )


@dataclass(frozen=True, slots=True)
class RepeatedSteps:
    """Steps that were done and had to be done again. `last` is None where nobody knows how far the process had come, and the
    last that is known where it may have come further.
    """

    first: int
    last: int | None
    time: float
    """Of the start that went back."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint that is there now. Sizes are in bytes on the disk; None: they were not, or cannot be measured."""

    sequence: int
    step: int
    at: int
    segment: int
    position: Position
    directory: str
    time: float
    reason: str
    state: Literal["good", "damaged", "not finite"]
    """`good` as far as its documents say: its arrays are not read for it."""
    problem: str
    """Why a resume would pass over it; else empty."""
    abandoned: bool
    saved_again: bool
    aside: bool
    """A start that could use none has begun anew, and kept it until a person prunes."""
    components: int
    inexact: Mapping[str, str]
    """Component -> `approximate` or `not captured`; those that are exact are left out."""
    metrics: Mapping[str, float]
    alone: int | None = None
    """What would be gone with it."""
    shared: int | None = None
    """What other checkpoints need, too."""
    raw: int | None = None
    """Its documents and arrays, uncompressed."""

    @property
    def fidelity(self) -> Literal["exact", "approximate", "not captured", "unknown"]:
        """The least that one of its components promises."""
        if not self.components:
            return "unknown"
        said = set(self.inexact.values())
        return "not captured" if "not captured" in said else "approximate" if said else "exact"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands now, in one word and one sentence. `process` is who works on it, or did last."""

    state: State
    why: str
    process: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """What happened, oldest first."""

    points: tuple[SavePoint, ...]
    restarts: tuple[Restart, ...]
    lost: tuple[RepeatedSteps, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics that a save has recorded, sorted."""
        return tuple(sorted({name for point in self.points for name in point.metrics}))

    @property
    def gist(self) -> Gist:
        """What of it says how the run stands."""
        backwards = self.restarts[::-1]
        times = [point.time for point in self.points]
        return Gist(
            newest=next((point for point in reversed(self.points) if not point.abandoned), None),
            last=next((one for one in backwards if one.event != "refused"), None),
            refused=next((one for one in backwards if one.event == "refused"), None),
            last_save=max(times, default=float("-inf")),
            longest=max((after - before for before, after in pairwise(times)), default=0.0),
        )


@dataclass(frozen=True, slots=True)
class Gist:
    """As much of a story as says how a run stands, however long the story is."""

    newest: SavePoint | None
    """Of those that count."""
    last: Restart | None
    """The last start or end."""
    refused: Restart | None
    last_save: float
    """Since 1970-01-01 UTC; minus infinity: none is known."""
    longest: float
    """Seconds between two saves, at most."""


@dataclass(frozen=True, slots=True)
class RunOverview:
    """One run at a glance."""

    name: str
    where: str
    state: State
    state_why: str
    process: str
    points: tuple[SavePoint, ...]
    restarts: tuple[Restart, ...]
    lost: tuple[RepeatedSteps, ...]
    checkpoints: tuple[CheckpointRow, ...]
    """The latest written first."""
    budget: float | None
    """The share of the time that saving may take, from 0 to 1; None: there is no such bound, or nobody knows."""
    unreadable: tuple[str, ...] = ()
    """Records that cannot be read, each with why."""
    cost: RunCost | None = None
    """What the run takes on the disk; None: it cannot be measured, or was not asked for."""

    @property
    def story(self) -> Story:
        return Story(self.points, self.restarts, self.lost)

    @property
    def newest(self) -> SavePoint | None:
        """The latest save that counts."""
        return next((point for point in reversed(self.points) if not point.abandoned), None)


def overview_of(run: Target | Repository, *, now: float, here: Process | None = None) -> RunOverview:
    """Return all that is known of a run, with the cost of each checkpoint. `now`: seconds since 1970-01-01 UTC.

    Reads every manifest, document and index, and no array.

    Raises:
        StoreError: the store does not answer.
        UnsupportedFormat: a newer version has written it.
    """
    repository, where = (run.repository, run.where) if isinstance(run, Target) else (run, run.job)
    # Before its story: what is saved meanwhile may be a point without a row, but no row lacks its point.
    listed = checkpoints(repository)
    story = story_of(repository)
    standing = standing_of(repository, story.gist, now=now, here=here)
    cost = cost_of(repository)
    return RunOverview(
        name=repository.job,
        where=where,
        state=standing.state,
        state_why=standing.why,
        process=standing.process,
        points=story.points,
        restarts=story.restarts,
        lost=story.lost,
        checkpoints=checkpoint_rows(listed, story, cost),
        budget=budget_of(repository),
        unreadable=tuple(str(fault) for fault in repository.broken()),
        cost=cost,
    )


def story_of(repository: Repository) -> Story:
    """Return the saves, starts and ends of a run. Reads its records only, and metadata where a record is missing."""
    points = _points(repository)
    axis = _Axis(points)
    restarts = _idle(_restarts(repository.history(), axis), points)
    lost = tuple(
        RepeatedSteps(one.at, None if one.steps_lost is None else one.at + one.steps_lost, one.time)
        for one in restarts
        if one.went_on and one.steps_lost != 0
    )
    return Story(points, restarts, lost)


def standing_of(repository: Repository, gist: Gist, *, now: float, here: Process | None = None) -> Standing:
    """Return how a run stands."""
    here = here or current()
    lease = read_lease(repository.store)
    newest = gist.newest
    ended = newest is not None and newest.position == "end"
    if lease is not None:
        owner = named_in(lease)
        alive = owner.is_alive(here=here)
        if alive:
            return Standing("running", f"{owner} works on it", str(owner))
        if alive is None:
            return _unseen(lease, gist, owner, now=now)
        if newest is None:
            return Standing("crashed", f"{owner} is gone, and had saved nothing", str(owner))
        if ended:
            return Standing("finished", f"its training ended at step {newest.step:,}", str(owner))
        companion = await_companion(repository.store, patience=0.0, here=here)
        more = f", and {companion} still writes its last checkpoint" if companion is not None else ""
        return Standing("crashed", f"{owner} is gone without closing the run{more}", str(owner))
    last, refused = gist.last, gist.refused
    if newest is None:
        why = f"a start was refused: {'; '.join(refused.reasons)}" if refused else "nothing was saved yet"
        return Standing("empty", why, refused.process if refused else "")
    process = last.process if last is not None else ""
    if ended:
        return Standing("finished", f"its training ended at step {newest.step:,}", process)
    if last is not None and last.event == "end":
        said = f": {'; '.join(last.reasons)}" if last.reasons else ""
        return Standing("stopped", f"{process} closed it at step {last.step:,}{said}", process)
    if last is None:
        return Standing("stopped", "no process is on record: it is a copy, or its history is gone")
    return Standing("crashed", f"{process} is gone without closing the run, and nobody holds it", process)


def checkpoint_rows(
    listed: Sequence[Listed], story: Story, cost: RunCost | None = None
) -> tuple[CheckpointRow, ...]:
    """Return a row for each checkpoint, in the order given. Without `cost` their sizes are None."""
    points = {point.sequence: point for point in story.points if point.sequence}
    sizes = {} if cost is None else {one.commit.sequence: one for one in cost.checkpoints if not one.problem}
    rows: list[CheckpointRow] = []
    for one in listed:
        commit = one.commit
        point = points.get(commit.sequence)
        size = sizes.get(commit.sequence)
        rows.append(
            CheckpointRow(
                sequence=commit.sequence,
                step=commit.step,
                at=commit.step if point is None else point.at,
                segment=commit.segment,
                position=commit.position,
                directory=commit.directory,
                time=commit.time,
                reason="" if point is None else point.reason,
                state="good" if not one.problem else "damaged" if commit.good else "not finite",
                problem=one.problem,
                abandoned=one.abandoned,
                saved_again=one.saved_again,
                aside=one.aside,
                components=one.components,
                inexact=one.fidelity,
                metrics=commit.metrics,
                alone=None if size is None else size.cost.alone,
                shared=None if size is None else size.cost.shared,
                raw=None if size is None else size.cost.raw,
            )
        )
    return tuple(rows)


def cost_of(repository: Repository) -> RunCost | None:
    """Return what a run takes on the disk; None where damage keeps it from being measured."""
    try:
        return measure(repository.store)
    except UnbrokenError:
        return None


def budget_of(repository: Repository) -> float | None:
    """Return the share of the time that saving may take, as the newest readable checkpoint has it."""
    for commit in repository.commits()[:BUDGET_LOOKS]:
        try:
            said = repository.meta(commit).counters.get(MAX_OVERHEAD)
        except UnbrokenError:
            continue
        return float(said) if isinstance(said, (int, float)) and 0 < said <= 1 else None
    return None


BUDGET_LOOKS = 3
"""So many checkpoints are asked, should the newest be damaged."""


class _Axis:
    """Puts the segments of a run one after the other."""

    def __init__(self, points: Sequence[SavePoint]) -> None:
        self._offsets = {point.segment: point.at - point.step for point in points}
        self._points = {point.sequence: point for point in points if point.sequence}
        self._in_time = points

    def at(self, record: HistoryRecord) -> int:
        """Return where a line of the history stands."""
        known = self._points.get(record.sequence)
        if known is None:
            known = next((p for p in reversed(self._in_time) if p.time <= record.time), None)
        return record.step + (0 if known is None else self._offsets[known.segment])


def _points(repository: Repository) -> tuple[SavePoint, ...]:
    records = repository.saves()
    offsets = _offsets([(record.segment, record.step) for record in records])
    left = _left_behind([(r.segment, r.step, _ORDER[r.position]) for r in records])
    return tuple(
        SavePoint(
            sequence=record.sequence,
            step=record.step,
            at=record.step + offsets[record.segment],
            segment=record.segment,
            position=record.position,
            time=record.time,
            epoch=record.epoch,
            reason=record.reason,
            metrics=record.metrics,
            good=record.good,
            blocked=record.blocked,
            durable=record.durable,
            bytes=record.bytes,
            written=record.written,
            inexact=record.inexact,
            abandoned=number in left,
        )
        for number, record in enumerate(records)
    )


def _offsets(saved: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return by how much the steps of each segment are moved, so that none overlaps the one before."""
    steps: dict[int, tuple[int, int]] = {}
    for segment, step in saved:
        low, high = steps.get(segment, (step, step))
        steps[segment] = min(low, step), max(high, step)
    order = sorted(steps)
    moved: dict[int, int] = {}
    end = 0
    for segment in order:
        low, high = steps[segment]
        moved[segment] = end if low < end else 0
        end = high + moved[segment]
    return moved


def _left_behind(saved: Sequence[tuple[int, int, int]]) -> set[int]:
    """Return the places of those that a later save stands before, or at the same point as."""
    later = list(accumulate(reversed(saved), min))[::-1]
    return {place for place in range(len(saved) - 1) if saved[place] >= later[place + 1]}


def _restarts(history: Sequence[HistoryRecord], axis: _Axis) -> tuple[Restart, ...]:
    return tuple(
        Restart(
            time=record.time,
            event=record.event,
            first=record.event == "start" and record.fault in ("", "none"),
            step=record.step,
            at=axis.at(record),
            fault=record.fault,
            tier=record.tier,
            sequence=record.sequence,
            steps_lost=_lost(record),
            at_least=bool(record.lost_at_least),
            seconds=record.seconds,
            reasons=tuple(record.reasons),
            changes=tuple(record.changes),
            process=str(named_in(record)),
        )
        for record in history
    )


def _idle(restarts: tuple[Restart, ...], points: Sequence[SavePoint]) -> tuple[Restart, ...]:
    """Return the restarts, those marked that found an end and that nothing was saved after. No clock is asked."""
    ends = {point.sequence for point in points if point.position == "end"}
    following = max((point.sequence for point in points), default=0)
    found: list[Restart] = []
    for one in reversed(restarts):
        start = one.event == "start"
        idle = start and not one.first and one.sequence in ends and following == one.sequence
        found.append(replace(one, idle=idle))
        following = one.sequence if start else following
    return tuple(reversed(found))


def _lost(record: HistoryRecord) -> int | None:
    if record.event != "start" or record.fault in ("", "none"):
        return 0
    return None if record.steps_lost < 0 else record.steps_lost


def _unseen(lease: Lease, gist: Gist, owner: Process, *, now: float) -> Standing:
    """Tell a process that cannot be seen from here by its signs of life."""
    silence = now - max(lease.time, gist.last_save)
    patience = max(PATIENCE, GAPS * gist.longest)
    if silence <= patience:
        return Standing(
            "running", f"{owner} holds it, and has saved of late; it cannot be seen from here", str(owner)
        )
    return Standing(
        "stale", f"{owner} holds it, cannot be seen from here, and has not saved for {silence / 60:,.0f} minutes", str(owner)
    )  # fmt: skip
