"""One session from this server to another of its class, while whoever calls it waits.

*surrender* holds the calls to the session, waits for the one that is being executed, and gives its record, complete in itself. *receive*
makes it live elsewhere and durable. *settle* sends the calls on, or lets them go on here.

Who dies when: a surrender is not written down. A server that is started again before it was told how it ended has
the session, and lets calls in; a late word that it has moved is refused then, because it may have gone on. The copy at the other server
is addressed by nobody, and is overwritten when the session comes again with at least the same calls. After `settle` both
have it in their logs. A trainer that takes the server over ends all surrenders of the one before in the same way.

Not promised: that the address of a moved session holds for longer than the server at it. A checkpoint carries it as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from unbroken.adapters.nemo_gym import control, records
from unbroken.adapters.nemo_gym.control import Nothing, Record, Refuses
from unbroken.adapters.nemo_gym.records import Call, SessionRecord, Whole
from unbroken.adapters.nemo_gym.server.participant import Participant
from unbroken.adapters.nemo_gym.server.recovery import plan_records


@dataclass(slots=True)
class _Given:
    to: str
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Migrations:
    """Sessions of one server that are being given away, and those that come."""

    def __init__(self, participant: Participant) -> None:
        self._of = participant
        self._given: dict[str, _Given] = {}

    def holds(self, session: str) -> bool:
        """Whether calls to this session have to wait."""
        return session in self._given

    async def settled(self, session: str) -> None:
        """Wait for as long as a session is being given away."""
        while (given := self._given.get(session)) is not None:
            await given.settled.wait()

    def end(self) -> None:
        """End all surrenders: the sessions stay here."""
        for session in tuple(self._given):
            self._let_go(session)

    async def surrender(self, asked: control.Surrender) -> Record:
        """Hold a session's calls, and give its record."""
        of, session = self._of, asked.session
        self._open_one(session)
        if session in self._given:
            raise Refuses("busy", f"Session {session} is being given away already.", names=(session,))
        self._given[session] = _Given(asked.to)
        try:
            async with of.lock(session):
                record = self._open_one(session)
                ticket = of.save_state(record)
                if record.state is None and of.capability != "replay":
                    why = of.states.reason(session) or f"this server's sessions are {of.capability}"
                    raise Refuses("other", f"Session {session} cannot be moved: {why}.", names=(session,))
                await of.durable(ticket)
                whole = msgspec.structs.replace(
                    record, calls=[_with(call, of.media.lower) for call in record.calls]
                )
                return Record(key=session, data=records.encode(whole))
        except BaseException:
            self._let_go(session)
            raise

    async def receive(self, asked: control.Receive) -> Nothing:
        """Make a session live here, and durable."""
        of = self._of
        try:
            record = records.session(asked.record)
        except msgspec.DecodeError as error:
            raise Refuses("format", f"This is no record of a session: {error}.") from error
        for data in asked.media.values():
            of.media.put(data)
        record.calls = [_with(call, of.media.lift) for call in record.calls]
        async with of.lock(record.id):
            own = of.book.get(record.id)
            if own is not None and not _continues(record, own):
                raise Refuses(
                    "busy",
                    f"Session {record.id} is here already ({own.status}), and has gone on.",
                    names=(record.id,),
                )
            if own is not None:
                of.remove(record.id)
            restored = await of.bring_back(plan_records([record], capability=of.capability), [])
            if record.status == "refused":
                await of.durable(of.remove(record.id))
                raise Refuses(
                    "lost session",
                    f"Session {record.id} cannot live here: {record.reason}",
                    names=(record.id,),
                )
            of.recovery = msgspec.structs.replace(
                of.recovery,
                listed=(*of.recovery.listed, *(r for r in restored.recovered if r.tier != "newest")),
            )
            await of.durable(of.write(record.id, Whole(record=record)))
        return Nothing()

    async def settle(self, asked: control.Settle) -> Nothing:
        """Say how it ended."""
        of, session = self._of, asked.session
        record, given = of.book.get(session), self._given.get(session)
        if given is None:
            if asked.moved and (record is None or record.status != "moved"):
                raise Refuses(
                    "unknown session",
                    f"Session {session} is not being given away; it may have gone on here. Migrate it again.",
                    names=(session,),
                )
            return Nothing()
        if asked.moved and record is not None:
            of.states.remove(session)
            left = SessionRecord(
                id=session,
                rollout=record.rollout,
                attempt=record.attempt,
                revision=record.revision,
                status="moved",
                reason=given.to,
            )
            of.book.put(left)
            await of.durable(of.write(session, Whole(record=left)))
        self._let_go(session)
        return Nothing()

    def _open_one(self, session: str) -> SessionRecord:
        record = self._of.book.get(session)
        if record is None or record.status != "open":
            what = "is not here" if record is None else f"is {record.status}"
            raise Refuses("unknown session", f"Session {session} {what}.", names=(session,))
        return record

    def _let_go(self, session: str) -> None:
        given = self._given.pop(session, None)
        if given is not None:
            given.settled.set()


def _continues(record: SessionRecord, own: SessionRecord) -> bool:
    """Whether what is here is an earlier state of what comes, or nothing to lose."""
    if own.status in {"moved", "refused"}:
        return True
    return own.status == "open" and own.calls == record.calls[: len(own.calls)]


def _with(call: Call, change: Callable[[bytes], bytes]) -> Call:
    return msgspec.structs.replace(call, arguments=change(call.arguments), result=change(call.result))
