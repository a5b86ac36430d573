"""One session from this server to another of its class, while whoever calls it waits.

*surrender* holds the calls to the session, waits for the one that is being executed, and gives its record, complete in itself. *receive*
makes it live elsewhere and durable. *settle* sends the calls on, or lets them go on here.

Who dies when: a surrender is not written down. A server that is started again before it was told how it ended has
the session, and lets calls in; a late word that it has moved is refused then, because it may have gone on. The copy at the other server
is addressed by nobody, and is overwritten when the session comes again with at least the same calls. After `settle` both
have it in their logs. Nobody waits for ever: a surrender ends as if nothing had moved when its lease is over, when its session is dropped,
when another trainer takes the server over, and when what was settled cannot be written down (then nothing is answered here any more).

Not promised: that the address of a moved session holds for longer than the server at it. A checkpoint carries it as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from unbroken.adapters.nemo_gym import control, records
from unbroken.adapters.nemo_gym.control import InFlight, Nothing, Record, Refuses
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import Call, SessionRecord, Whole
from unbroken.adapters.nemo_gym.server.participant import Participant
from unbroken.adapters.nemo_gym.server.recovery import plan_records
from unbroken.adapters.nemo_gym.serving.controls import check_epoch

_LOGGER = logging.getLogger("unbroken.nemo_gym")


@dataclass(slots=True, eq=False)
class _Given:
    """A session that is being given away, and the calls that wait for it."""

    to: str
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    expiry: asyncio.TimerHandle | None = None
    waiting: list[tuple[InFlight, float]] = field(default_factory=list[tuple[InFlight, float]])


class Migrations:
    """Sessions of one server that are being given away, and those that come."""

    def __init__(self, participant: Participant) -> None:
        self._of = participant
        self._given: dict[str, _Given] = {}

    def holds(self, session: str) -> bool:
        """Whether calls to this session have to wait."""
        return session in self._given

    def held(self) -> tuple[InFlight, ...]:
        """Return the calls that wait for sessions which are being given away."""
        now = time.monotonic()
        return tuple(
            msgspec.structs.replace(call, seconds=round(now - since, 3))
            for given in self._given.values()
            for call, since in given.waiting
        )

    async def settled(self, session: str, call: InFlight) -> None:
        """Have a call wait for as long as its session is being given away."""
        while (given := self._given.get(session)) is not None:
            entry = call, time.monotonic()
            given.waiting.append(entry)
            try:
                await given.settled.wait()
            finally:
                given.waiting.remove(entry)

    def end(self) -> None:
        """End all surrenders: the sessions stay here."""
        for session in tuple(self._given):
            self.end_of(session)

    def end_of(self, session: str) -> None:
        """End the surrender of a session, if it is being given away: calls that wait for it go on."""
        given = self._given.pop(session, None)
        if given is not None:
            if given.expiry is not None:
                given.expiry.cancel()
            given.settled.set()

    async def surrender(self, asked: control.Surrender) -> Record:
        """Hold a session's calls, and give its record."""
        of, session = self._of, asked.session
        self._open_one(session)
        if session in self._given:
            raise Refuses("busy", f"Session {session} is being given away already.", names=(session,))
        given = self._given[session] = _Given(asked.to)
        self._expire(session, given, asked.lease)
        try:
            async with of.lock(session):
                self._check_holds(session, given)
                record = self._open_one(session)
                ticket = of.save_state(record)
                if record.state is None and of.capability != "replay":
                    why = of.states.reason(session) or f"this server's sessions are {of.capability}"
                    raise Refuses("other", f"Session {session} cannot be moved: {why}.", names=(session,))
                await of.durable(ticket)
                calls = [await _with(call, of.media.lower_aside) for call in record.calls]
                data = records.encode(msgspec.structs.replace(record, calls=calls))
                self._check_holds(session, given)
                self._expire(session, given, asked.lease)  # from here on it is others who take their time
                return Record(key=session, data=data)
        except BaseException:
            if self._given.get(session) is given:
                self.end_of(session)
            raise

    async def receive(self, asked: control.Receive) -> Nothing:
        """Make a session live here, and durable."""
        of, epoch = self._of, self._of.epoch
        try:
            record = records.session(asked.record)
        except msgspec.DecodeError as error:
            raise Refuses("format", f"This is no record of a session: {error}.") from error
        await asyncio.to_thread(_put_all, of.media, asked.media)
        record.calls = [await _with(call, of.media.lift_aside) for call in record.calls]
        async with of.lock(record.id), of.turn:
            check_epoch(epoch, of.epoch)
            of.check()
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
            if epoch != of.epoch:  # the trainer that has the server now knows nothing of it
                await of.durable(of.remove(record.id))
                check_epoch(epoch, of.epoch)
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
        try:
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
                await of.durable(of.write_end(left))
        finally:  # if that could not be written, the server is closed, and who waits is told so
            if self._given.get(session) is given:
                self.end_of(session)
        return Nothing()

    def _expire(self, session: str, given: _Given, seconds: float) -> None:
        """Have a surrender end by itself `seconds` from now."""
        if given.expiry is not None:
            given.expiry.cancel()

        def end() -> None:
            if self._given.get(session) is given:
                _LOGGER.warning(
                    "unbroken: session %s was to move to %s, and nobody said within %g s whether it has: it stays",
                    session, given.to, seconds,
                )  # fmt: skip
                self.end_of(session)

        given.expiry = asyncio.get_running_loop().call_later(seconds, end)

    def _check_holds(self, session: str, given: _Given) -> None:
        """Refuse to go on with a surrender that was ended meanwhile."""
        if self._given.get(session) is not given:
            raise Refuses(
                "other",
                f"Session {session} is not being given away any more: the time for it is over, or another trainer came."
                " It stays here; migrate it again.",
                names=(session,),
            )

    def _open_one(self, session: str) -> SessionRecord:
        record = self._of.book.get(session)
        if record is None or record.status != "open":
            what = "is not here" if record is None else f"is {record.status}"
            raise Refuses("unknown session", f"Session {session} {what}.", names=(session,))
        return record


def _continues(record: SessionRecord, own: SessionRecord) -> bool:
    """Whether what is here is an earlier state of what comes, or nothing to lose."""
    if own.status in {"moved", "refused"}:
        return True
    return own.status == "open" and own.calls == record.calls[: len(own.calls)]


async def _with(call: Call, change: Callable[[bytes], Awaitable[bytes]]) -> Call:
    return msgspec.structs.replace(
        call, arguments=await change(call.arguments), result=await change(call.result)
    )


def _put_all(media: Media, blobs: Mapping[str, bytes]) -> None:
    for data in blobs.values():
        media.put(data)
