"""The rollouts of an agent, in memory and in its log: what each was asked, what it was told, how it ended.

Invariant: what a method that returned has put in is in the log first, so that a process that ends leaves no less behind
than it has acted on. Bodies are kept as they came, byte for byte; large images in them lie in `media` and are named.

Each time that a rollout begins from nothing it is another incarnation, and its calls have other names: a rollout of which
something is lost never goes on over what other servers keep of it.

Marks grow with every change of a rollout, and each process begins far above all marks of those before it, whatever its clock
says. An export since a mark of an earlier process is a complete one, because what was dropped since then is not known any more.
"""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from blake3 import blake3

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.agent.changes import Changes
from unbroken.adapters.nemo_gym.agent.folding import Folded, answer_put, bodies_of, fold
from unbroken.adapters.nemo_gym.agent.recovering import recovered
from unbroken.adapters.nemo_gym.control import Exported, Record
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
    Marked,
    RolloutRecord,
    Saved,
    Started,
    WholeRollout,
)
from unbroken.adapters.nemo_gym.serving.versions import versions
from unbroken.errors import CorruptObject, ObjectMissing, StoreError

GENERATION = 1 << 40
"""More changes than one process makes."""
_COMPACT_FROM = 1 << 20
"""Bytes: a smaller log is not worth a rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who writes a log."""

    server: str
    class_name: str
    config_hash: str


def _drawn() -> str:
    return secrets.token_hex(4)


class Journal:
    """Made by `open`. Used from one event loop."""

    def __init__(
        self,
        log: Log,
        media: Media,
        identity: Identity,
        *,
        clock: Callable[[], float],
        draw: Callable[[], str],
    ) -> None:
        began = time.monotonic()
        folded = fold(log.lines)
        self._log = log
        self.media = media
        self._identity = identity
        self._draw = draw
        self.records = folded.rollouts
        self._answers = _by_key(self.records)
        self._asked = folded.asked
        last = folded.started
        self.epoch = folded.epoch
        self.committed_mark = folded.committed
        self.recovered_mark = self._marked = max(folded.marked, folded.committed)
        self.lineage = uuid.uuid4().hex if last is None else last.lineage
        self._changes = Changes(_first(folded), {r.id: bodies_of(r) for r in self.records.values()})
        self._digests: dict[str, str] = {}
        self._dead = max(0, log.size - sum(_size(record) for record in self.records.values()))
        self._started = clock()
        found = recovered(folded, log, agent=identity.server)
        self.recovery = found.recovery
        log.forget()
        log.append("", self._start())
        for rollout in found.lost:
            self.begin_anew(rollout)
        if (
            found.damaged
        ):  # else the next process would find the same damage, and let them begin anew once more
            self._rewrite()
        self._compact()
        self.recovery = msgspec.structs.replace(self.recovery, seconds=round(time.monotonic() - began, 3))

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        key: bytes,
        identity: Identity,
        sync: bool = True,
        clock: Callable[[], float] = time.time,
        draw: Callable[[], str] = _drawn,
    ) -> Journal:
        """Open the log in `directory`, or begin one. `draw` gives the incarnations of rollouts.

        Raises:
            RunBusy: another live process writes it.
            StoreError: it cannot be read or written.
        """
        log = Log.open(directory, key=key, sync=sync)
        try:
            return cls(log, Media(directory / "media"), identity, clock=clock, draw=draw)
        except BaseException:
            with suppress(StoreError):  # what went wrong first is told
                log.close()
            raise

    def close(self) -> None:
        self._log.close()

    def flush(self) -> None:
        self._log.flush()

    @property
    def mark(self) -> int:
        return self._changes.mark

    @property
    def first_mark(self) -> int:
        """Where this process began to count."""
        return self._changes.first

    # What happens to a rollout.

    def dispatch(
        self, rollout: str, *, attempt: int, body: bytes, stamped: bool, row: str = ""
    ) -> tuple[RolloutRecord, int]:
        """Begin a rollout, or another attempt of one; its answers are kept. Returns it, and what `durable` waits for."""
        record = self.records.get(rollout)
        if record is None:
            record = self.records[rollout] = RolloutRecord(id=rollout, incarnation=self._draw())
        record.attempt, record.stamped, record.row = attempt, stamped, row
        record.body = self.media.lift(body)
        ticket = self._append(
            rollout,
            Dispatched(
                rollout=rollout, attempt=attempt, body=record.body, stamped=stamped, row=row,
                incarnation=record.incarnation,
            ),
        )  # fmt: skip
        self._state(record)
        return record, ticket

    def answer(self, rollout: str, key: str) -> Answer | None:
        """Return the answer to a call, its bodies as they came; None if there is none.

        Raises:
            ObjectMissing, CorruptObject: an image in it is gone.
        """
        answer = self._answers.get(rollout, {}).get(key)
        return None if answer is None else _with(answer, self.media.lower)

    def answers(self, rollout: str) -> dict[str, Answer]:
        """Return the answers of a rollout by key, images left where they are."""
        return dict(self._answers.get(rollout, {}))

    def in_doubt(self, rollout: str) -> dict[str, Asked]:
        """Return the calls of a rollout that went out and were not answered, by key."""
        return dict(self._asked.get(rollout, {}))

    def asked(self, asked: Asked) -> None:
        self._asked.setdefault(asked.rollout, {})[asked.key] = asked
        self._append(asked.rollout, asked)

    async def answered(self, rollout: str, answer: Answer) -> None:
        """Keep an answer; it is durable when this returns. Of a rollout that was dropped meanwhile nothing is kept."""
        record = self.records.get(rollout)
        if record is None:
            return
        kept = _with(answer, self.media.lift)
        ticket = self._append(rollout, Answered(rollout=rollout, answer=kept))
        self._asked.get(rollout, {}).pop(answer.key, None)
        self._answers.setdefault(rollout, {})[answer.key] = kept
        answer_put(record, kept)
        self._note(rollout, kept.arguments, kept.result)
        await self._log.durable(ticket)

    async def finish(self, rollout: str, *, status: int, result: bytes) -> None:
        """Keep what a rollout came to; it is durable when this returns."""
        record = self.records[rollout]
        kept = self.media.lift(result)
        ticket = self._append(
            rollout, Finished(rollout=rollout, attempt=record.attempt, status=status, result=kept)
        )
        record.status, record.result = status, kept
        self._asked.pop(rollout, None)
        if record.stamped:
            self._note(rollout, kept)
        else:  # no trainer carries it, or ever drops it
            self._dead += _size(record) - len(record.body) - len(kept)
            record.answers = []
            self._answers.pop(rollout, None)
            self._state(record)
        await self._log.durable(ticket)

    def result(self, record: RolloutRecord) -> bytes:
        """Return what a rollout came to, as it was answered.

        Raises:
            ObjectMissing, CorruptObject: an image in it is gone.
        """
        return self.media.lower(record.result)

    async def ask_again(self, rollout: str, keep: Callable[[Answer], bool]) -> None:
        """Keep only some of a rollout's answers: the others will be asked for again."""
        record = self.records.get(rollout)
        if record is None or all(keep(answer) for answer in record.answers):
            return
        record.answers = [answer for answer in record.answers if keep(answer)]
        self._answers[rollout] = {answer.key: answer for answer in record.answers}
        self._state(record)
        await self._log.durable(self._append(rollout, WholeRollout(record=record)))

    def begin_anew(self, rollout: str) -> None:
        """Keep of a rollout only that there was one, and which attempt; its calls have other names from now on."""
        old = self.records[rollout]
        self._dead += _size(old)
        record = RolloutRecord(
            id=rollout, attempt=old.attempt, path=old.path, stamped=old.stamped, incarnation=self._draw()
        )
        self.records[rollout] = record
        self._answers.pop(rollout, None)
        self._asked.pop(rollout, None)
        self._append(rollout, WholeRollout(record=record))
        self._state(record)

    def forget(self, rollouts: Iterable[str]) -> int | None:
        """Keep nothing of these rollouts; unknown ones are passed over. Returns what `durable` waits for."""
        ticket = None
        for rollout in rollouts:
            record = self.records.pop(rollout, None)
            if record is not None:
                self._dead += _size(record)
                self._answers.pop(rollout, None)
                self._asked.pop(rollout, None)
                self._digests.pop(rollout, None)
                self._changes.drop(rollout)
                ticket = self._append(rollout, Dropped(rollout=rollout))
        return ticket

    async def durable(self, ticket: int | None) -> None:
        if ticket is not None:
            await self._log.durable(ticket)

    # What a trainer asks.

    async def adopt(self, run: str) -> int:
        self.epoch = epoch = self.epoch + 1
        await self._log.durable(self._append("", Adopted(epoch=epoch, run=run)))
        return epoch

    def export(self, lineage: str, mark: int, *, lost: Callable[[str, str], None] | None = None) -> Exported:
        """Return what has changed since `mark`, or everything where that cannot be told.

        A rollout of which an image cannot be read begins anew, and is given like that; `lost` is told, with the reason.
        """
        complete = lineage != self.lineage or not self._changes.knows(mark)
        media: dict[str, bytes] = {}
        for rollout in list(self.records) if complete else self._changes.after(mark):
            names = self._changes.images(rollout, after=-1 if complete else mark)
            try:
                media.update({digest: self.media.get(digest) for digest in names if digest not in media})
            except (ObjectMissing, CorruptObject) as error:
                self.begin_anew(rollout)
                if lost is not None:
                    lost(rollout, str(error))
        changed = list(self.records) if complete else self._changes.after(mark)
        given = [
            Record(key=i, data=records.encode(self.records[i]) if i in self.records else b"") for i in changed
        ]
        self._marked = self.mark
        self._append("", Marked(mark=self.mark))
        return Exported(lineage=self.lineage, mark=self.mark, complete=complete, records=given, media=media)

    async def committed(self, mark: int) -> None:
        """Note that all up to `mark` is in a durable checkpoint, and tidy up."""
        if self.committed_mark < mark <= self.mark:
            self.committed_mark = mark
            await self._log.durable(self._append("", Saved(mark=mark)))
        self._changes.settled(mark, self.records)
        self._compact()

    def _compact(self) -> None:
        """Write the log anew if more than half of it is about what is not kept."""
        if self._log.size >= _COMPACT_FROM and self._dead * 2 > self._log.size:
            self._rewrite()

    def replace(self, rollouts: Iterable[RolloutRecord], media: dict[str, bytes]) -> None:
        """Put these rollouts in the place of all that there are; durable when this returns.

        It is another log from then on: who knows the former has to ask for everything.
        """
        for data in media.values():
            self.media.put(data)
        self.lineage = uuid.uuid4().hex
        self.committed_mark = self.recovered_mark = self._marked = 0
        self.records = {record.id: record for record in rollouts}
        self._answers = _by_key(self.records)
        self._asked.clear()
        self._digests.clear()
        self._changes.mark += 1
        self._changes.begin({r.id: bodies_of(r) for r in self.records.values()})
        self._rewrite()

    def digest(self, rollout: str) -> str:
        """Return a digest of what the rollout was told and came to: the same wherever that is the same."""
        known = self._digests.get(rollout)
        if known is None:
            known = self._digests[rollout] = self._digest(self.records[rollout])
        return known

    def bytes_of(self, rollout: str) -> int:
        return _size(self.records[rollout])

    def _digest(self, record: RolloutRecord) -> str:
        mac = blake3()
        for key, answer in sorted(self._answers.get(record.id, {}).items()):
            for part in (key.encode(), str(answer.status).encode(), answer.result):
                mac.update(len(part).to_bytes(8, "little") + part)
        mac.update(str(record.status).encode() + record.result)
        return mac.hexdigest(length=16)

    def _append(self, label: str, entry: records.Entry) -> int:
        return self._log.append(label, records.encode(entry))

    def _rewrite(self) -> None:
        lines = [Line("", self._start())]
        lines += [
            Line(record.id, records.encode(WholeRollout(record=record))) for record in self.records.values()
        ]
        lines += [
            Line(rollout, records.encode(asked))
            for rollout, calls in self._asked.items()
            for asked in calls.values()
        ]
        lines.append(Line("", records.encode(Marked(mark=self._marked))))
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
            mark=self.first_mark,
            committed=self.committed_mark,
        )
        return records.encode(started)

    def _note(self, rollout: str, *bodies: bytes) -> None:
        self._digests.pop(rollout, None)
        self._changes.note(rollout, *bodies)

    def _state(self, record: RolloutRecord) -> None:
        self._digests.pop(record.id, None)
        self._changes.state(record.id, bodies_of(record))


def _first(folded: Folded) -> int:
    """Return where a process begins to count: above all that a former one may have counted.

    How far above is drawn. An older copy of the log, put back, does not know of the processes since: it is not to
    count what they have counted.
    """
    known = max(folded.begun, folded.marked, folded.committed)
    return known + GENERATION + secrets.randbelow(GENERATION)


def _by_key(rollouts: dict[str, RolloutRecord]) -> dict[str, dict[str, Answer]]:
    return {record.id: {answer.key: answer for answer in record.answers} for record in rollouts.values()}


def _with(answer: Answer, change: Callable[[bytes], bytes]) -> Answer:
    """Return an answer with its bodies changed."""
    return msgspec.structs.replace(answer, arguments=change(answer.arguments), result=change(answer.result))


def _size(record: RolloutRecord) -> int:
    return sum(len(body) for body in bodies_of(record))
