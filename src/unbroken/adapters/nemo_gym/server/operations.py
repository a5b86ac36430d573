"""What a trainer can ask of a resources server: `control.OPERATIONS`, carried out.

Sessions are read out only while nobody is inside. What is put in the place of all there was becomes the log in one step: a
server that dies before it comes back as it was, and one that fails in the middle stays closed and says so.

Invariant: of what reads, adds, removes or replaces sessions one happens at a time (`Participant.turn`); and nothing takes effect for a trainer that has lost
the server while it waited.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from unbroken.adapters.nemo_gym import control, records
from unbroken.adapters.nemo_gym.control import (
    Committed,
    Drop,
    Epoch,
    Export,
    Exported,
    Nothing,
    Prepared,
    Problem,
    Quiesce,
    Record,
    Recovery,
    Refuses,
    Sessions,
    SessionSummary,
    Status,
    Tool,
)  # fmt: skip
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import Adopted, Encoded, SessionRecord, Shared
from unbroken.adapters.nemo_gym.server.book import Changes
from unbroken.adapters.nemo_gym.server.migration import Migrations
from unbroken.adapters.nemo_gym.server.participant import Participant, lost_one
from unbroken.adapters.nemo_gym.server.recovery import plan_records
from unbroken.adapters.nemo_gym.serving.controls import Handler, check_epoch
from unbroken.adapters.nemo_gym.serving.versions import versions
from unbroken.adapters.nemo_gym.sessions.registry import config_hash, tools_of
from unbroken.errors import CorruptObject, ObjectMissing, UnbrokenError

_NOT_IN_BETWEEN = 16
"""Sessions that are read out before others get a word in: a trainer wants to know that the server lives."""
_encoded = msgspec.msgpack.Decoder(Encoded)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What was sent for the place of all there is. `lost`: records of which media are missing, and which."""

    asked: control.Prepare
    lost: Mapping[str, str]


class Operations:
    """Carries out control requests for one server."""

    def __init__(self, participant: Participant, migrations: Migrations, *, application: object) -> None:
        self._of = participant
        self._migrations = migrations
        self._application = application
        self._tools: tuple[Tool, ...] | None = None
        self._prepared: _Prepared | None = None

    def handlers(self) -> Mapping[str, Handler]:
        """Return what answers each operation."""
        return {
            "status": self.status,
            "adopt": self.adopt,
            "quiesce": self.quiesce,
            "export": self.export,
            "release": self.release,
            "committed": self.committed,
            "prepare": self.prepare,
            "activate": self.activate,
            "drop": self.drop,
            "sessions": self.sessions,
            "digests": self.digests,
            "surrender": self._if_usable(self._migrations.surrender),
            "receive": self._if_usable(self._migrations.receive),
            "settle": self._if_usable(self._migrations.settle),
        }

    async def status(self, _: Nothing) -> Status:
        of = self._of
        return Status(
            role="resources",
            name=str(getattr(of.server.config, "name", "") or ""),
            class_name=type(of.server).__name__,
            phase=of.phase,
            capability=of.capability,
            exclusions=of.states.exclusions,
            lineage=of.lineage,
            mark=of.book.mark,
            committed=of.saved,
            recovered_mark=of.recovered_mark,
            first_mark=of.book.begun,
            epoch=of.epoch,
            pid=os.getpid(),
            config_hash=config_hash(of.server),
            versions=versions(),
            sessions=len(of.book),
            rollouts=of.book.rollouts(),
            in_flight=of.in_flight(),
            held=self._migrations.held(),
            recovery=self._told(),
            tools=self.tools(),
            cache=of.states.cache(),
        )

    def _told(self) -> Recovery:
        """Return how the server came back, and why it stays closed if it does."""
        recovery, failure = self._of.recovery, self._of.failure
        if failure is None:
            return recovery
        return msgspec.structs.replace(recovery, notes=(*recovery.notes, f"it stays closed: {failure}"))

    def tools(self) -> tuple[Tool, ...]:
        """Return the server's tools. Asked for once it serves: routes may be added after its application is built."""
        if self._tools is None:
            self._tools = tools_of(self._of.server, self._application)
        return self._tools

    async def adopt(self, asked: control.Adopt) -> Epoch:
        of = self._of
        await self._usable()
        of.epoch, of.run = of.epoch + 1, asked.run
        epoch = of.epoch
        self._prepared = None  # it was the other trainer's
        self._migrations.end()
        of.gate.end_drains()
        await of.durable(of.write("", Adopted(epoch=epoch, run=of.run)))
        return Epoch(epoch=epoch)

    async def quiesce(self, asked: Quiesce) -> Nothing:
        of, epoch = self._of, self._of.epoch
        since = time.monotonic()
        await self._usable(asked.timeout)
        check_epoch(epoch, of.epoch)
        of.open_when_restored = False
        try:
            await of.gate.drain(max(0.0, asked.timeout - (time.monotonic() - since)))
        except Refuses:
            check_epoch(epoch, of.epoch)
            raise
        of.phase = "quiesced"
        return Nothing()

    async def release(self, _: Nothing) -> Nothing:
        of, epoch = self._of, self._of.epoch
        await self._usable()
        check_epoch(epoch, of.epoch)
        of.open_when_restored = True
        of.open()
        return Nothing()

    async def export(self, asked: Export) -> Exported:
        of, epoch = self._of, self._of.epoch
        async with of.turn:
            self._check_quiesced(epoch)
            self._check_none_waits()
            mark = asked.mark if asked.lineage == of.lineage else -1
            ticket = 0
            for number, record in enumerate(of.book.changed_since(mark)):
                if record.status == "open" and record.state_revision != record.revision:
                    ticket = of.save_state(record) or ticket
                if number % _NOT_IN_BETWEEN == 0:
                    await asyncio.sleep(0)
                    self._check_quiesced(epoch)
            ticket = of.save_shared() or ticket
            changes, media, given_up = await self._readable(mark)
            self._check_quiesced(epoch)
            ticket = of.mark_given(changes.mark) or given_up or ticket
            exported = Exported(
                lineage=of.lineage,
                mark=changes.mark,
                complete=changes.complete,
                records=[
                    *(Record(key=record.id, data=of.encoded(record)) for record in changes.records),
                    *(Record(key=session, data=b"") for session in changes.gone),
                ],
                shared=b"" if of.shared is None else records.encode(of.shared.state),
                media=media,
            )
            await of.durable(ticket)
        return exported

    async def _readable(self, mark: int) -> tuple[Changes, dict[str, bytes], int]:
        """Return what has changed, and its media. A session one of whose media cannot be read is given up for it."""
        of, ticket = self._of, 0
        while True:
            changes = of.book.changes(mark)
            media, damaged = await asyncio.to_thread(_read_all, of.media, changes.media)
            if not damaged:
                return changes, media, ticket
            for record in changes.records:
                hit = sorted(of.book.media_of(record.id) & damaged.keys())
                if hit:
                    ticket = of.give_up(record, damaged[hit[0]])

    def _check_none_waits(self) -> None:
        of = self._of
        if of.capability != "drain_only":
            return
        open_ones = tuple(record.id for record in of.book if record.status == "open")
        if open_ones:
            raise Refuses(
                "busy",
                f"{len(open_ones)} sessions wait for each other and cannot be saved; the first is {open_ones[0]}."
                " Let their rollouts end, or drop them, and save again.",
                names=open_ones,
            )

    async def committed(self, asked: Committed) -> Nothing:
        of, epoch = self._of, self._of.epoch
        await self._usable()
        async with of.turn:
            check_epoch(epoch, of.epoch)
            of.book.settled(asked.mark)
            ticket = of.mark_saved(asked.mark)
            if of.is_long:
                await of.rewrite()
            await of.durable(ticket)
        return Nothing()

    async def prepare(self, asked: control.Prepare) -> Prepared:
        of, epoch = self._of, self._of.epoch
        await self._usable()
        problems = [
            Problem(key="", what=f"the media {digest} is damaged")
            for digest in await asyncio.to_thread(_put_all, of.media, asked.media)
        ]
        named = {record.key: Media.named(record.data) for record in asked.records}
        _, unreadable = await asyncio.to_thread(_read_all, of.media, frozenset().union(*named.values()))
        check_epoch(epoch, of.epoch)
        lost: dict[str, str] = {}
        for number, record in enumerate(record for record in asked.records if record.data):
            if hit := sorted(named[record.key] & unreadable.keys()):
                lost[record.key] = unreadable[hit[0]]
            if what := self._wrong(record) or lost.get(record.key, ""):
                problems.append(Problem(key=record.key, what=what))
            if number % _NOT_IN_BETWEEN == 0:
                await asyncio.sleep(0)
                check_epoch(epoch, of.epoch)
        if asked.shared:
            try:
                of.states.decode(_encoded.decode(asked.shared))
            except (UnbrokenError, msgspec.DecodeError) as error:
                problems.append(Problem(key="", what=f"what sessions share cannot be used: {error}"))
        self._prepared = _Prepared(asked, lost)
        return Prepared(records=len(asked.records), problems=tuple(problems))

    def _wrong(self, record: Record) -> str:
        try:
            session = records.session(record.data)
            if session.id != record.key:
                return f"it is the record of {session.id}"
            if session.state is not None:
                self._of.states.decode(session.state)
        except (UnbrokenError, msgspec.DecodeError) as error:
            return str(error)
        return ""

    async def activate(self, _: control.Activate) -> Recovery:
        of, epoch = self._of, self._of.epoch
        await self._usable()
        async with of.turn:
            check_epoch(epoch, of.epoch)
            of.check()
            if of.gate.is_open or of.gate.in_flight():
                raise Refuses(
                    "busy", "The server is open. Quiesce it before another state is put in its place."
                )
            if self._prepared is None:
                raise Refuses("other", "Nothing was prepared. Send the records first.")
            prepared, self._prepared = self._prepared, None
            phase, of.phase = of.phase, "restoring"
            # Whoever opens it, reads it or takes it over waits until it is one thing again.
            of.restored.clear()
            try:
                await self._replace(prepared)
                of.phase = phase
            except BaseException as error:
                of.fail(error, doing="putting a checkpoint in the place of its state")
                if isinstance(error, Exception):
                    of.check()
                raise
            finally:
                of.restored.set()
        return of.recovery

    async def _replace(self, prepared: _Prepared) -> None:
        of, asked = self._of, prepared.asked
        begun = time.monotonic()
        notes: list[str] = []
        hash_now = config_hash(of.server)
        if asked.config_hash and asked.config_hash != hash_now:
            notes.append(f"the configuration is another: {asked.config_hash} then, {hash_now} now")
        sessions = [
            _read(record, prepared.lost.get(record.key, "")) for record in asked.records if record.data
        ]
        shared: list[Shared] = []
        if asked.shared:
            order = max((call.order for session in sessions for call in session.calls), default=0)
            try:
                shared.append(Shared(order=order, state=_encoded.decode(asked.shared)))
            except msgspec.DecodeError as error:
                notes.append(f"what sessions share cannot be used: {error}")
        self._migrations.end()
        of.forget()
        of.shared = shared[0] if shared else None
        restored = await of.bring_back(plan_records(sessions, capability=of.capability), shared)
        await of.rewrite()
        of.recovery = Recovery(
            source="checkpoint",
            sessions=len(restored.records),
            rollouts=of.book.rollouts(),
            redone=restored.redone,
            listed=tuple(r for r in restored.recovered if r.tier != "newest" or r.redone or r.reasons),
            notes=(*notes, *restored.notes),
            seconds=round(time.monotonic() - begun, 3),
        )

    async def drop(self, asked: Drop) -> Nothing:
        of, epoch = self._of, self._of.epoch
        await self._usable()
        ticket = 0
        for record in of.book.of(asked.rollouts):
            self._migrations.end_of(record.id)
            async with of.lock(record.id), of.turn:
                check_epoch(epoch, of.epoch)
                of.check()
                if record.id in of.book:
                    ticket = of.remove(record.id)
        await of.durable(ticket)
        return Nothing()

    async def sessions(self, _: Nothing) -> Sessions:
        await self._usable()  # until then it has none
        return Sessions(sessions=[_summary(record, _known_digest(record)) for record in self._of.book])

    async def digests(self, _: Nothing) -> Sessions:
        of = self._of
        await self._usable()
        found: list[SessionSummary] = []
        for record in of.book:
            async with of.lock(record.id):  # not in the middle of a call
                found.append(_summary(record, of.states.digest(record.id) if record.status == "open" else ""))
        return Sessions(sessions=found)

    async def _usable(self, timeout: float | None = None) -> None:
        """Wait until the server has restored itself, and refuse if it cannot be used."""
        try:
            await asyncio.wait_for(self._of.restored.wait(), timeout)
        except asyncio.TimeoutError:
            raise Refuses(
                "busy", "The server is still restoring itself. Ask again, or raise sync_timeout."
            ) from None
        self._of.check()

    def _if_usable(self, handler: Handler) -> Handler:
        async def handle(asked: msgspec.Struct) -> msgspec.Struct:
            epoch = self._of.epoch
            await self._usable()
            check_epoch(epoch, self._of.epoch)
            return await handler(asked)

        return handle

    def _check_quiesced(self, epoch: int) -> None:
        of = self._of
        check_epoch(epoch, of.epoch)
        of.check()
        if of.phase != "quiesced" or of.gate.is_open:
            raise Refuses(
                "other", f"The server is {of.phase}, and is only read while quiesced. Quiesce it first."
            )


def _read(record: Record, problem: str) -> SessionRecord:
    try:
        session = records.session(record.data)
    except msgspec.DecodeError as error:
        return SessionRecord(id=record.key, status="refused", reason=f"its record cannot be read: {error}")
    return lost_one(session, problem) if problem else session


def _read_all(media: Media, digests: Collection[str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return blobs, and of those that cannot be had why not."""
    found: dict[str, bytes] = {}
    failed: dict[str, str] = {}
    for digest in sorted(digests):
        try:
            found[digest] = media.get(digest)
        except (CorruptObject, ObjectMissing) as error:
            failed[digest] = str(error)
    return found, failed


def _put_all(media: Media, blobs: Mapping[str, bytes]) -> list[str]:
    """Keep blobs; return the digests of those that are others than they are said to be."""
    return [digest for digest, data in blobs.items() if media.put(data) != digest]


def _summary(record: SessionRecord, digest: str) -> SessionSummary:
    size = sum(len(call.arguments) + len(call.result) for call in record.calls)
    return SessionSummary(
        id=record.id,
        rollout=record.rollout,
        attempt=record.attempt,
        revision=record.revision,
        status=record.status,
        digest=digest,
        bytes=size + (len(record.state.data) if record.state else 0),
        last=record.calls[-1].path if record.calls else "",
    )


def _known_digest(record: SessionRecord) -> str:
    return (
        record.state.digest if record.state is not None and record.state_revision == record.revision else ""
    )
