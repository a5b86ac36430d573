"""The rollouts of an agent, in memory and in its log: what each was asked, what it was told, how it ended.

Invariant: what a method that returned has put in is in the log first, so that a process that ends leaves no less behind
than it has acted on. Bodies are kept as they came, byte for byte; large images in them lie in `media` and are named.

Marks grow with every change of a rollout, also from one process to the next of the same log. An export since a
mark of an earlier process is a complete one, because what was dropped since then is not known any more.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
from blake3 import blake3

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.agent.folding import Folded, answer_put, fold
from unbroken.adapters.nemo_gym.control import Exported, InFlight, Record, Recovered, Recovery
from unbroken.adapters.nemo_gym.log import Line, Log
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import (
    Adopted,
    Answer,
    Answered,
    Asked,
    Dispatched,
    Dropped,
    Finished,
    RolloutRecord,
    Started,
    WholeRollout,
)

_COMPACT_FROM = 1 << 20
"""Bytes: a smaller log is not worth a rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who writes a log."""

    server: str
    class_name: str
    config_hash: str


class Journal:
    """Made by `open`. Used from one event loop."""

    def __init__(self, log: Log, media: Media, identity: Identity, *, clock: Callable[[], float]) -> None:
        began = time.monotonic()
        folded = fold(log.lines)
        self._log = log
        self.media = media
        self._identity = identity
        self._clock = clock
        self.records = folded.rollouts
        self._answers = {r.id: {a.key: a for a in r.answers} for r in folded.rollouts.values()}
        self._asked = dict(folded.asked)
        self._births = folded.births
        last = folded.started
        now = clock() if last is None else max(clock(), last.time + 0.001)
        self.epoch = folded.epoch
        self.lineage = uuid.uuid4().hex if last is None else last.lineage
        self._base = self.mark = int(now * 1e6)  # grows from process to process without being written down
        self._changed = dict.fromkeys(self.records, self.mark)
        self._named: dict[
            tuple[str, str], int
        ] = {}  # rollout and image -> mark at which the one named the other
        self._dead = max(0, log.size - sum(_size(record) for record in self.records.values()))
        self._started = now
        self._note_all()
        self.recovery = _recovery(folded, log, seconds=time.monotonic() - began)
        log.forget()
        log.append("", self._start())
        self._compact()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        key: bytes,
        identity: Identity,
        sync: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> Journal:
        """Open the log in `directory`, or begin one.

        Raises:
            RunBusy: another live process writes it.
            StoreError: it cannot be read or written.
        """
        return cls(Log.open(directory, key=key, sync=sync), Media(directory / "media"), identity, clock=clock)

    def close(self) -> None:
        self._log.close()

    def flush(self) -> None:
        self._log.flush()

    # What happens to a rollout.

    def dispatch(self, rollout: str, *, attempt: int, body: bytes, stamped: bool) -> RolloutRecord:
        """Begin a rollout, or another attempt of one; its answers are kept."""
        record = self.records.setdefault(
            rollout, RolloutRecord(id=rollout, birth=self._births.pop(rollout, 0))
        )
        kept = self.media.lift(body)
        self._append(
            rollout,
            Dispatched(rollout=rollout, attempt=attempt, body=kept, stamped=stamped, birth=record.birth),
        )
        record.attempt, record.body, record.stamped = attempt, kept, stamped
        self._touch(rollout, kept)
        return record

    def answer(self, rollout: str, key: str) -> Answer | None:
        """Return the answer to a call, its bodies as they came; None if there is none."""
        answer = self._answers.get(rollout, {}).get(key)
        return None if answer is None else _with(answer, self.media.lower)

    def answers(self, rollout: str) -> dict[str, Answer]:
        """Return the answers of a rollout by key, images left where they are."""
        return dict(self._answers.get(rollout, {}))

    def asked(self, asked: Asked) -> None:
        self._asked[asked.rollout, asked.key] = asked
        self._append(asked.rollout, asked)

    async def answered(self, rollout: str, answer: Answer) -> None:
        """Keep an answer; it is durable when this returns. Of a rollout that was dropped meanwhile nothing is kept."""
        record = self.records.get(rollout)
        if record is None:
            return
        kept = _with(answer, self.media.lift)
        ticket = self._append(rollout, Answered(rollout=rollout, answer=kept))
        self._asked.pop((rollout, answer.key), None)
        self._answers.setdefault(rollout, {})[answer.key] = kept
        answer_put(record, kept)
        self._touch(rollout, kept.arguments, kept.result)
        await self._log.durable(ticket)

    async def finish(self, rollout: str, *, status: int, result: bytes) -> None:
        """Keep what a rollout came to; it is durable when this returns."""
        record = self.records[rollout]
        kept = self.media.lift(result)
        ticket = self._append(
            rollout, Finished(rollout=rollout, attempt=record.attempt, status=status, result=kept)
        )
        record.status, record.result = status, kept
        if not record.stamped:  # no trainer carries it, or ever drops it
            self._dead += _size(record) - len(record.body) - len(kept)
            record.answers = []
            self._answers.pop(rollout, None)
        self._forget_asked(rollout)
        self._touch(rollout, kept)
        await self._log.durable(ticket)

    def result(self, record: RolloutRecord) -> bytes:
        return self.media.lower(record.result)

    async def ask_again(self, rollout: str, keep: Callable[[Answer], bool]) -> None:
        """Keep only some of a rollout's answers: the others will be asked for again."""
        record = self.records.get(rollout)
        if record is None or all(keep(answer) for answer in record.answers):
            return
        record.answers = [answer for answer in record.answers if keep(answer)]
        self._answers[rollout] = {answer.key: answer for answer in record.answers}
        self._touch(rollout)
        await self._log.durable(self._append(rollout, WholeRollout(record=record)))

    def begin_anew(self, rollout: str) -> None:
        """Keep of a rollout only that there was one, and which attempt; its calls have other names from now on."""
        old = self.records[rollout]
        self._dead += _size(old)
        record = RolloutRecord(
            id=rollout, attempt=old.attempt, path=old.path, stamped=old.stamped, birth=old.birth + 1
        )
        self.records[rollout] = record
        self._answers.pop(rollout, None)
        self._forget_asked(rollout)
        self._append(rollout, WholeRollout(record=record))
        self._touch(rollout)

    def forget(self, rollouts: Iterable[str]) -> int | None:
        """Keep nothing of these rollouts; unknown ones are passed over. Returns the ticket to wait for."""
        ticket = None
        for rollout in rollouts:
            record = self.records.pop(rollout, None)
            if record is not None:
                self._dead += _size(record)
                self._births[rollout] = record.birth + 1
                self._answers.pop(rollout, None)
                self._forget_asked(rollout)
                for pair in [pair for pair in self._named if pair[0] == rollout]:
                    del self._named[pair]
                self.mark += 1
                self._changed[rollout] = self.mark
                ticket = self._append(rollout, Dropped(rollout=rollout))
        return ticket

    async def durable(self, ticket: int | None) -> None:
        if ticket is not None:
            await self._log.durable(ticket)

    # What a trainer asks.

    async def adopt(self, run: str) -> int:
        self.epoch += 1
        await self._log.durable(self._append("", Adopted(epoch=self.epoch, run=run)))
        return self.epoch

    def export(self, lineage: str, mark: int) -> Exported:
        """Return what has changed since `mark`, or everything where that cannot be told."""
        complete = lineage != self.lineage or not self._base <= mark <= self.mark
        changed = [i for i, at in self._changed.items() if complete or at > mark]
        given = [
            Record(key=i, data=records.encode(self.records[i]) if i in self.records else b"")
            for i in changed
            if i in self.records or not complete
        ]
        named = {
            digest
            for record in given
            for digest in Media.named(record.data)
            if complete or self._named.get((record.key, digest), 0) > mark
        }
        return Exported(
            lineage=self.lineage,
            mark=self.mark,
            complete=complete,
            records=given,
            media={digest: self.media.get(digest) for digest in sorted(named)},
        )

    def committed(self) -> None:
        """Tidy up once a checkpoint is durable: what was dropped before that is not asked for again."""
        self._births.clear()
        self._compact()

    def _compact(self) -> None:
        """Write the log anew if more than half of it is about what is not kept."""
        if self._log.size >= _COMPACT_FROM and self._dead * 2 > self._log.size:
            self._rewrite()

    def replace(self, rollouts: Iterable[RolloutRecord], media: dict[str, bytes]) -> None:
        """Put these rollouts in the place of all that there are; durable when this returns."""
        for data in media.values():
            self.media.put(data)
        gone = set(self.records)
        self.records = {record.id: record for record in rollouts}
        self._answers = {r.id: {a.key: a for a in r.answers} for r in self.records.values()}
        self._asked.clear()
        self.mark += 1
        self._changed = dict.fromkeys(gone | set(self.records), self.mark)
        self._note_all()
        self._rewrite()

    def digest(self, rollout: str) -> str:
        """Return a digest of what the rollout was told and came to: the same wherever that is the same."""
        record = self.records[rollout]
        mac = blake3()
        for key in sorted(self._answers.get(rollout, {})):
            answer = self._answers[rollout][key]
            for part in (key.encode(), str(answer.status).encode(), answer.result):
                mac.update(len(part).to_bytes(8, "little") + part)
        mac.update(str(record.status).encode() + record.result)
        return mac.hexdigest(length=16)

    def bytes_of(self, rollout: str) -> int:
        return _size(self.records[rollout])

    def _append(self, label: str, entry: records.Entry) -> int:
        return self._log.append(label, records.encode(entry))

    def _rewrite(self) -> None:
        lines = [Line("", self._start())]
        lines += [
            Line(record.id, records.encode(WholeRollout(record=record))) for record in self.records.values()
        ]
        lines += [Line(asked.rollout, records.encode(asked)) for asked in self._asked.values()]
        self._log.rewrite(lines)
        self._dead = 0

    def _start(self) -> bytes:
        started = Started(
            lineage=self.lineage,
            server=self._identity.server,
            class_name=self._identity.class_name,
            config_hash=self._identity.config_hash,
            pid=os.getpid(),
            time=self._started,
            versions=versions(),
            epoch=self.epoch,
        )
        return records.encode(started)

    def _touch(self, rollout: str, *bodies: bytes) -> None:
        self.mark += 1
        self._changed[rollout] = self.mark
        self._note_media(rollout, *bodies)

    def _note_media(self, rollout: str, *bodies: bytes) -> None:
        for body in bodies:
            for digest in Media.named(body):
                self._named.setdefault((rollout, digest), self._changed[rollout])

    def _note_all(self) -> None:
        self._named.clear()
        for record in self.records.values():
            self._note_media(record.id, record.body, record.result)
            for answer in record.answers:
                self._note_media(record.id, answer.arguments, answer.result)

    def _forget_asked(self, rollout: str) -> None:
        for key in [key for key in self._asked if key[0] == rollout]:
            del self._asked[key]


def versions() -> dict[str, str]:
    """Return the versions that tell one environment from another."""
    found = {"python": platform.python_version()}
    for name in ("unbroken", "nemo-gym"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a checkout that is not installed
            continue
    return found


def _with(answer: Answer, change: Callable[[bytes], bytes]) -> Answer:
    """Return an answer with its bodies changed."""
    return msgspec.structs.replace(answer, arguments=change(answer.arguments), result=change(answer.result))


def _size(record: RolloutRecord) -> int:
    bodies = sum(len(answer.arguments) + len(answer.result) for answer in record.answers)
    return len(record.body) + len(record.result) + bodies


def _recovery(folded: Folded, log: Log, *, seconds: float) -> Recovery:
    """Say how a log came back. A rollout with a damaged line has lost what that line said, and asks for it again."""
    listed: dict[str, list[str]] = {}
    notes = list(log.notes)
    spoilt = [(damaged.label, damaged.what) for damaged in log.damaged] + folded.unreadable
    for label, what in spoilt:
        if label in folded.rollouts:
            listed.setdefault(label, []).append(what)
        else:
            notes.append(f"{label or 'A line'}: {what}")
    return Recovery(
        source="nothing" if folded.started is None else "log",
        rollouts=len(folded.rollouts),
        listed=tuple(
            Recovered(id=rollout, tier="older", reasons=tuple(reasons)) for rollout, reasons in listed.items()
        ),
        in_doubt=tuple(
            InFlight(
                path=a.path, id=call_id(folded.rollouts[a.rollout], a.key), rollout=a.rollout, server=a.server
            )
            for a in folded.asked.values()
        ),
        notes=tuple(notes),
        seconds=round(seconds, 3),
    )


def call_id(record: RolloutRecord, key: str) -> str:
    """Return the name of a call that no other call has. In each attempt of its rollout it is the same."""
    return f"{record.id}#{key}" if not record.birth else f"{record.id}.{record.birth}#{key}"
