"""What can be done to bring sessions back: read out of the lines of a log, or out of records; nothing is done here.

For each session a list of trials, the best first: its newest state and the calls since; an older one and more calls; its first call
and all others. A call whose answer is missing in between rules out every trial that would have to execute it again. `/verify` is never
executed again: its recorded answer stands, and the state after it is in the log where there is one.

Not promised: that a lost line at the very end is noticed where nothing hints at it. A damaged line does: of a session with a call
that has no answer it may have been that answer, and such a session is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Capability, InFlight, Tier
from unbroken.adapters.nemo_gym.log import Damaged, Line
from unbroken.adapters.nemo_gym.records import (
    Adopted,
    Began,
    Built,
    Call,
    Encoded,
    Ended,
    Gone,
    Marked,
    Saved,
    SessionRecord,
    Shared,
    Started,
    State,
    Whole,
)  # fmt: skip

VERIFY = "/verify"


def call_of(began: Began, ended: Ended) -> Call:
    """Return the call of which these are the beginning and the end."""
    return Call(
        id=began.id,
        method=began.method,
        path=began.path,
        query=began.query,
        arguments=began.arguments,
        status=ended.status,
        result=ended.result,
        content_type=ended.content_type,
        cookies=ended.cookies,
        headers=began.headers,
        answer_headers=ended.answer_headers,
        revision=ended.revision,
        order=ended.order,
        started=began.started,
        seconds=ended.seconds,
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """Install `state` (None: begin with nothing), which is that after call `revision`, and execute `redo`."""

    tier: Tier
    state: Encoded | None
    revision: int
    redo: tuple[Call, ...]


@dataclass(slots=True)
class Comeback:
    """A session, with all its calls, and how it may come back. No trials: it does not, or needs not."""

    record: SessionRecord
    trials: list[Trial]
    reasons: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Plan:
    """All that a log amounts to. `number` and `order` are the highest in use; `shared` has the newest last. `mark` is where its
    last process began to count, `marked` and `saved` the highest marks that were given, and called durable."""

    lineage: str = ""
    epoch: int = 0
    run: str = ""
    mark: int = 0
    marked: int = 0
    saved: int = 0
    number: int = 0
    order: int = 0
    sessions: list[Comeback] = field(default_factory=list[Comeback])
    shared: list[Shared] = field(default_factory=list[Shared])
    built: Built | None = None
    in_doubt: list[InFlight] = field(default_factory=list[InFlight])
    notes: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Found:
    record: SessionRecord
    calls: dict[int, Call] = field(default_factory=dict[int, Call])
    states: list[tuple[int, Encoded]] = field(default_factory=list[tuple[int, Encoded]])
    reasons: list[str] = field(default_factory=list[str])
    lost: bool = False
    """Whether a call may have been executed of which nothing can be read."""

    @property
    def newest(self) -> int:
        """The newest call that is heard of."""
        return max([self.record.revision, *self.calls, *(revision for revision, _ in self.states)])


class _Reading:
    """One pass over the lines of a log."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.found: dict[str, _Found] = {}
        self.pending: dict[int, tuple[Began, int]] = {}
        """Calls without an answer so far, and which revision it would have made."""
        self.of_earlier: set[int] = set()
        """Numbers of those that an earlier process had begun."""
        self.gone: set[str] = set()
        """Sessions that were removed, and did not begin again."""

    def take(self, line: Line) -> None:
        try:
            entry = records.entry(line.payload)
        except msgspec.DecodeError as error:
            self.plan.notes.append(f"a line of {line.label or 'the log'} cannot be read: {error}")
            return
        match entry:
            case Began():
                known = self.found.get(entry.session)
                self.pending[entry.number] = entry, (known.newest if known else 0) + 1
                self.plan.number = max(self.plan.number, entry.number)
                self._raise_attempt(entry)
            case Ended():
                self._ended(entry)
            case State() if entry.session in self.gone:
                pass  # read out while it was being removed
            case State():
                self._of(entry.session).states.append((entry.revision, entry.state))
            case Whole():
                self._whole(entry.record)
            case Gone():
                self.found.pop(entry.session, None)
                self.gone.add(entry.session)
            case Shared():
                self.plan.shared.append(entry)
            case Built():
                self.plan.built = self.plan.built or entry
            case Started():
                self.plan.lineage, self.plan.mark = entry.lineage, entry.mark
                self.plan.epoch = max(self.plan.epoch, entry.epoch)
                self.plan.saved = max(self.plan.saved, entry.committed)
                self.of_earlier.update(self.pending)
            case Saved():
                self.plan.saved = max(self.plan.saved, entry.mark)
            case Marked():
                self.plan.marked = max(self.plan.marked, entry.mark)
            case Adopted():
                self.plan.epoch, self.plan.run = entry.epoch, entry.run
            case _:
                self.plan.notes.append(
                    f"a line of {line.label or 'the log'} belongs to an agent; it was left out"
                )

    def _of(self, session: str) -> _Found:
        return self.found.setdefault(session, _Found(SessionRecord(id=session)))

    def _raise_attempt(self, began: Began) -> None:
        if (found := self.found.get(began.session)) is not None:
            found.record.attempt = max(found.record.attempt, began.attempt)
            found.record.rollout = found.record.rollout or began.rollout

    def _ended(self, ended: Ended) -> None:
        self.gone.discard(ended.session)
        found = self._of(ended.session)
        found.record.revision = max(found.record.revision, ended.revision)
        self.plan.order = max(self.plan.order, ended.order)
        if ended.number not in self.pending:
            found.reasons.append(f"what call {ended.revision} was asked cannot be read")
            return
        began, _ = self.pending.pop(ended.number)
        self._raise_attempt(began)
        found.calls[ended.revision] = call_of(began, ended)

    def _whole(self, record: SessionRecord) -> None:
        self.gone.discard(record.id)
        found = self._of(record.id)
        self.plan.order = max(self.plan.order, *(call.order for call in record.calls), 0)
        found.calls = {call.revision: call for call in record.calls}
        found.states = [(revision, state) for revision, state in found.states if revision <= record.revision]
        if record.state is not None:
            found.states.append((record.state_revision, record.state))
        found.record, found.reasons = record, []


def plan_log(lines: Iterable[Line], damaged: Sequence[Damaged] = (), *, capability: Capability) -> Plan:
    """Return what a log amounts to. `damaged` are lines of it that could not be read."""
    reading = _Reading()
    for line in lines:
        reading.take(line)
    for bad in damaged:
        if (found := reading.found.get(bad.label)) is not None:
            found.reasons.append(f"a line of it is damaged: {bad.what}")
        else:
            whose = bad.label or "somebody"
            reading.plan.notes.append(f"a damaged line of {whose} was left out: {bad.what}")
    anybody = any(bad.label not in reading.found for bad in damaged)
    spoilt = {bad.label for bad in damaged}
    for number, (began, revision) in reading.pending.items():
        found = reading.found.get(began.session)
        if found is not None and found.newest < revision and (anybody or began.session in spoilt):
            found.lost = True
            found.reasons.append(f"a call of {began.path} may have been answered in a damaged line")
        if number not in reading.of_earlier:
            reading.plan.in_doubt.append(
                InFlight(path=began.path, id=began.id, rollout=began.rollout, session=began.session)
            )
    for found in reading.found.values():
        reading.plan.sessions.append(_comeback(found, capability))
    return reading.plan


def plan_records(sessions: Iterable[SessionRecord], *, capability: Capability) -> list[Comeback]:
    """Return how sessions can come back of which a checkpoint has the records."""
    comebacks: list[Comeback] = []
    for record in sessions:
        states = [] if record.state is None else [(record.state_revision, record.state)]
        found = _Found(record, {call.revision: call for call in record.calls}, states)
        comebacks.append(_comeback(found, capability))
    return comebacks


def older(comeback: Comeback, lines: Iterable[Line]) -> list[Trial]:
    """Return trials with the states that an earlier generation of the log has, the newest first.

    Only of the same history: the call after which a state was taken has to be the same in both.
    """
    reading = _Reading()
    for line in lines:
        if line.label == comeback.record.id:
            reading.take(line)
    found = reading.found.get(comeback.record.id)
    if found is None:
        return []
    calls = {call.revision: call for call in comeback.record.calls}
    usable = [
        (revision, state)
        for revision, state in found.states
        if revision in calls and found.calls.get(revision) == calls[revision]
    ]
    trials, _ = _trials(usable, calls, comeback.record.revision)
    return [Trial("older", trial.state, trial.revision, trial.redo) for trial in trials]


def _comeback(found: _Found, capability: Capability) -> Comeback:
    record = found.record
    calls = [found.calls[revision] for revision in sorted(found.calls)]
    revision = found.newest
    record.calls, record.revision = calls, revision
    record.state, record.state_revision = None, -1
    back = Comeback(record, [], list(found.reasons))
    if record.status != "open":
        return back
    over = bool(calls) and calls[-1].path == VERIFY and calls[-1].revision == revision
    if not found.states and (capability == "stateless" or (over and not found.lost)):
        # Without a state, a verified session would be executed again for nobody, up to before it was cleaned up.
        record.status = "retired"
    elif capability in {"restart_only", "drain_only"}:
        record.status = "retired" if over else "refused"
        back.reasons.append(_WHY[capability])
    elif found.lost:
        record.status = "refused"
    else:
        trials, reasons = _trials(found.states, found.calls, revision)
        if found.reasons:  # a damaged line may have been a newer state
            trials = [Trial("older", t.state, t.revision, t.redo) for t in trials]
        back.trials, back.reasons = trials, back.reasons + reasons
        missing = [number for number in range(1, revision + 1) if number not in found.calls]
        if missing:
            back.reasons.append(f"not replayed: call {missing[0]} cannot be read")
        else:
            back.trials.append(Trial("replayed", None, 0, _executed(calls)))
    return back


_WHY: dict[str, str] = {
    "restart_only": "this server's sessions cannot be brought back: its rollout has to begin anew",
    "drain_only": "what sessions of this server wait for together cannot be brought back: its rollout has to begin anew",
}


def _trials(
    states: Sequence[tuple[int, Encoded]], calls: dict[int, Call], revision: int
) -> tuple[list[Trial], list[str]]:
    trials: list[Trial] = []
    reasons: list[str] = []
    newest = sorted(enumerate(states), key=lambda item: (item[1][0], item[0]), reverse=True)
    for place, (_, (after, state)) in enumerate(newest):
        wanted = range(after + 1, revision + 1)
        missing = [number for number in wanted if number not in calls]
        if missing:
            reasons.append(f"the state after call {after} is of no use: call {missing[0]} cannot be read")
        else:
            redo = _executed([calls[number] for number in wanted])
            trials.append(Trial("older" if place else "newest", state, after, redo))
    return trials, reasons


def _executed(calls: Iterable[Call]) -> tuple[Call, ...]:
    return tuple(call for call in calls if call.path != VERIFY)
