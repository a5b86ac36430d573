"""Brings sessions back: carries out a plan of `recovery`, and takes the next trial where one does not hold.

First every session gets its best state that can be read, then all later calls are executed once more in the order of the whole
server, and each answer is compared. A session of which one differs is taken away whole before its next trial, so that none is ever
half of one and half of another. What sessions share is installed before the calls, and once more behind those that it
already holds.

Not promised: that what sessions share is exact where a session had to take a second trial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unbroken.adapters.nemo_gym.control import Recovered, Tier
from unbroken.adapters.nemo_gym.log import Line
from unbroken.adapters.nemo_gym.records import Call, SessionRecord, Shared
from unbroken.adapters.nemo_gym.server.recovery import Comeback, Trial, older
from unbroken.adapters.nemo_gym.server.redo import Redo
from unbroken.adapters.nemo_gym.sessions.states import SessionStates
from unbroken.errors import UnbrokenError

_AT_A_TIME = 16
"""Sessions that are installed before others get a word in: who asks for the status is answered meanwhile."""


@dataclass(slots=True)
class Restored:
    """How it went. `records` are all sessions, whatever became of them."""

    records: list[SessionRecord] = field(default_factory=list[SessionRecord])
    recovered: list[Recovered] = field(default_factory=list[Recovered])
    notes: list[str] = field(default_factory=list[str])

    @property
    def redone(self) -> int:
        return sum(recovered.redone for recovered in self.recovered)


@dataclass(slots=True)
class _Way:
    """One session's way back."""

    comeback: Comeback
    trials: list[Trial]
    earlier: Callable[[], Sequence[Line]]
    reasons: list[str]
    trial: Trial | None = None
    redone: int = 0
    asked: bool = False

    @property
    def session(self) -> str:
        return self.comeback.record.id

    def next(self) -> Trial | None:
        """Go on to the next trial. Earlier generations are only asked where this one's states were of no use."""
        if not self.asked and (not self.trials or self.trials[0].state is None):
            self.asked = True
            if self.reasons:
                self.trials[:0] = older(self.comeback, self.earlier())
        self.trial = self.trials.pop(0) if self.trials else None
        return self.trial


class Restoring:
    """Brings sessions back into one server."""

    def __init__(self, states: SessionStates, redo: Redo, *, earlier: Callable[[], Sequence[Line]]) -> None:
        self._states = states
        self._redo = redo
        self._earlier = earlier

    async def run(self, comebacks: Sequence[Comeback], shared: Sequence[Shared]) -> Restored:
        """Bring back all that can be. Every session is in the result, with what became of it."""
        restored = Restored()
        ways = [
            _Way(comeback, list(comeback.trials), self._earlier, list(comeback.reasons))
            for comeback in comebacks
            if comeback.record.status == "open"
        ]
        for way in ways:
            self._states.know(way.session)
        installed = self._share(shared, restored)
        for number, way in enumerate(ways):
            self._begin(way)
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        calls = [(call, way) for way in ways if way.trial for call in way.trial.redo]
        calls.sort(key=lambda item: item[0].order)
        reached = installed is not None
        for call, way in calls:
            if reached and installed is not None and call.order > installed.order:
                reached = False
                self._share([installed], restored)
            if way.trial is not None and not await self._again(way, call):
                self._undo(way)
        if reached and installed is not None and calls:
            self._share([installed], restored)
        for way in ways:
            while way.trial is None and self._begin(way):
                await self._alone(way)
        restored.records = [comeback.record for comeback in comebacks]
        restored.recovered = [_outcome(way) for way in ways]
        restored.recovered += [
            Recovered(id=c.record.id, tier="refused", reasons=tuple(c.reasons) or (c.record.reason,))
            for c in comebacks
            if c.record.status == "refused" and all(way.comeback is not c for way in ways)
        ]
        for comeback in comebacks:
            if comeback.record.status == "refused" and not comeback.record.reason:
                comeback.record.reason = "; ".join(comeback.reasons)
        return restored

    def _share(self, shared: Sequence[Shared], restored: Restored) -> Shared | None:
        """Install the newest shared state that can be read."""
        for entry in reversed(shared):
            try:
                self._states.install_shared(self._states.decode(entry.state))
            except UnbrokenError as error:
                restored.notes.append(f"what sessions share, as of call {entry.order}, is of no use: {error}")
            else:
                return entry
        return None

    def _begin(self, way: _Way) -> bool:
        """Install the next trial's state; False if there is none any more."""
        while (trial := way.next()) is not None:
            if trial.state is None:
                if not (left := self._states.left_behind(way.session)) or not trial.redo:
                    return True
                way.reasons.append(left)
                continue
            try:
                self._states.install(way.session, self._states.decode(trial.state))
            except UnbrokenError as error:
                way.reasons.append(f"the state after call {trial.revision} is of no use: {error}")
                self._states.remove(way.session)
                continue
            if self._states.agrees(way.session, trial.state):
                return True
            way.reasons.append(f"the state after call {trial.revision} is another one once it is installed")
            self._states.remove(way.session)
        return False

    async def _again(self, way: _Way, call: Call) -> bool:
        difference = await self._redo.execute(way.session, call)
        way.redone += 1
        if difference:
            way.reasons.append(difference)
        return not difference

    async def _alone(self, way: _Way) -> None:
        assert way.trial is not None
        for call in way.trial.redo:
            if not await self._again(way, call):
                self._undo(way)
                return

    def _undo(self, way: _Way) -> None:
        self._states.remove(way.session)
        way.trial = None


def _outcome(way: _Way) -> Recovered:
    record, trial = way.comeback.record, way.trial
    tier: Tier = "refused"
    if trial is None:
        record.status = "refused"
        record.reason = "; ".join(way.reasons) or "nothing of it can be used"
    else:
        tier = trial.tier
        record.state = trial.state
        record.state_revision = trial.revision if trial.state is not None else -1
    return Recovered(id=record.id, tier=tier, redone=way.redone, reasons=tuple(way.reasons))
