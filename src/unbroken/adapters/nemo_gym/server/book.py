"""The sessions of a server in memory: their records, what was answered, and what has changed since when.

A mark counts changes. Each process of one log begins far above all marks of the one before, so that a mark never means
two things. Bodies in here are lifted (`media`): images are names.

Not promised: any protection against two tasks that change one session at a time. `calls` holds its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import Call, Encoded, SessionRecord
from unbroken.errors import InternalError

GENERATION = 1 << 40
"""Marks of one process."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since a mark. `complete`: these are all there are."""

    records: tuple[SessionRecord, ...]
    gone: tuple[str, ...]
    media: frozenset[str]
    mark: int
    complete: bool


@dataclass(slots=True)
class Book:
    """`mark` is the newest; `begun` the one at which this process began."""

    begun: int = 0
    mark: int = 0
    order: int = 0
    """Of the newest call."""
    _records: dict[str, SessionRecord] = field(default_factory=dict[str, SessionRecord])
    _changed: dict[str, int] = field(default_factory=dict[str, int])
    """The newest last."""
    _gone: dict[str, int] = field(default_factory=dict[str, int])
    _floor: int = 0
    """Of gone sessions only those are known that went after this mark."""
    _answers: dict[tuple[str, str], Call] = field(default_factory=dict[tuple[str, str], Call])
    _media: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Of each session, since which mark it names which. By session: whoever was given a blob for one that is gone may
    have forgotten it with that one."""

    @classmethod
    def beginning(cls, *, after: int) -> Book:
        """Return an empty one whose marks lie above `after`."""
        begun = (after // GENERATION + 1) * GENERATION
        return cls(begun=begun, mark=begun, _floor=begun)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(tuple(self._records.values()))

    def __contains__(self, session: object) -> bool:
        return session in self._records

    def get(self, session: str) -> SessionRecord | None:
        return self._records.get(session)

    def answer(self, session: str, call: str) -> Call | None:
        """Return what the session's call with this id was answered, if it was."""
        return self._answers.get((session, call)) if call else None

    def media_of(self, session: str) -> frozenset[str]:
        """Return the digests of the media that a session's calls name."""
        return frozenset(self._media.get(session, ()))

    def of(self, rollouts: Collection[str]) -> list[SessionRecord]:
        """Return the sessions of these rollouts."""
        wanted = frozenset(rollouts)
        return [record for record in self._records.values() if record.rollout in wanted]

    def rollouts(self) -> int:
        return len({record.rollout for record in self._records.values() if record.rollout})

    def put(self, record: SessionRecord) -> None:
        """Add a session, or put it in the place of the one of its id."""
        if record.id in self._records:
            self._forget_calls(self._records[record.id])
        self._records[record.id] = record
        self._gone.pop(record.id, None)
        for call in record.calls:
            self._note(record.id, call)
        self.touch(record.id)

    def add(self, record: SessionRecord, call: Call) -> None:
        """Add a call that was answered."""
        record.calls.append(call)
        record.revision = call.revision
        self._note(record.id, call)
        self.touch(record.id)

    def set_state(self, record: SessionRecord, state: Encoded | None) -> None:
        """Keep the state after the session's newest call.

        Raises:
            InternalError: the record is not in here, or not any more.
        """
        if self._records.get(record.id) is not record:
            raise InternalError(f"The state of the session {record.id} was to be kept, which is not here.")
        record.state = state
        record.state_revision = -1 if state is None else record.revision
        self.touch(record.id)

    def touch(self, session: str) -> None:
        """A session has changed."""
        self.mark += 1
        self._changed.pop(session, None)
        self._changed[session] = self.mark

    def remove(self, session: str) -> None:
        """A session is not kept any more."""
        record = self._records.pop(session)
        self._forget_calls(record)
        del self._changed[session]
        self.mark += 1
        self._gone[session] = self.mark

    def clear(self) -> None:
        for record in self:
            self.remove(record.id)

    def changed_since(self, mark: int) -> list[SessionRecord]:
        """Return the sessions that have changed since a mark of this process, or all for one of another."""
        if mark < self._floor or mark > self.mark:
            return list(self._records.values())
        found: list[SessionRecord] = []
        for session, at in reversed(self._changed.items()):  # of ten thousand, a few have changed
            if at <= mark:
                break
            found.append(self._records[session])
        return found[::-1]

    def changes(self, mark: int) -> Changes:
        """Return what has changed since `mark`: everything, if it is none that can be told from here."""
        complete = mark < self._floor or mark > self.mark
        records = self.changed_since(mark)
        return Changes(
            records=tuple(records),
            gone=() if complete else tuple(session for session, at in self._gone.items() if at > mark),
            media=frozenset(
                digest
                for record in records
                for digest, at in self._media.get(record.id, {}).items()
                if complete or at > mark
            ),
            mark=self.mark,
            complete=complete,
        )

    def settled(self, mark: int) -> None:
        """Whatever went before `mark` is known to whoever asks for changes: forget it."""
        if self._floor <= mark <= self.mark:
            self._gone = {session: at for session, at in self._gone.items() if at > mark}
            self._floor = mark

    def _note(self, session: str, call: Call) -> None:
        self.order = max(self.order, call.order)
        if call.id:
            self._answers[session, call.id] = call
        named = Media.named(call.arguments) | Media.named(call.result)
        if named:
            known = self._media.setdefault(session, {})
            for digest in named:
                known.setdefault(digest, self.mark + 1)

    def _forget_calls(self, record: SessionRecord) -> None:
        self._media.pop(record.id, None)
        for call in record.calls:
            self._answers.pop((record.id, call.id), None)
