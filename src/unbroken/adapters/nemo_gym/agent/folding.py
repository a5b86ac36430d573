"""What the lines of an agent's log amount to: its rollouts, and the calls that were under way when it ended.

Pure. A line that cannot be read costs what it said and nothing else; it is named. An entry of a rollout whose beginning
is not there begins it. Of an unstamped rollout that is over nobody will carry the answers: only its result is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.frames import Line
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


@dataclass(slots=True)
class Folded:
    rollouts: dict[str, RolloutRecord] = field(default_factory=dict[str, RolloutRecord])
    asked: dict[str, dict[str, Asked]] = field(default_factory=dict[str, dict[str, Asked]])
    """Calls without an answer, by rollout and key."""
    started: Started | None = None
    """The newest start."""
    begun: int = 0
    """The highest mark at which a process began to count."""
    epoch: int = 0
    committed: int = 0
    """Up to where all is in a durable checkpoint, as a trainer has said."""
    marked: int = 0
    """Up to where all that was given to a trainer is in these lines."""
    unreadable: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """The label of a line, and what is wrong with it."""


def fold(lines: Iterable[Line]) -> Folded:
    """Read a log from its beginning."""
    folded = Folded()
    for line in lines:
        try:
            entry = records.entry(line.payload)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            folded.unreadable.append((line.label, str(error)))
            continue
        _take(folded, entry)
    return folded


def answer_put(record: RolloutRecord, answer: Answer) -> None:
    """Put an answer into the record of its rollout, in place of one of the same key."""
    for index, known in enumerate(record.answers):
        if known.key == answer.key:
            record.answers[index] = answer
            return
    record.answers.append(answer)


def bodies_of(record: RolloutRecord) -> list[bytes]:
    """Return all bodies of a rollout."""
    told = [body for answer in record.answers for body in (answer.arguments, answer.result)]
    return [record.body, record.result, *told]


def _take(folded: Folded, entry: records.Entry) -> None:
    match entry:
        case Dispatched():
            _dispatched(_of(folded, entry.rollout), entry)
        case Asked():
            _of(folded, entry.rollout)
            folded.asked.setdefault(entry.rollout, {})[entry.key] = entry
        case Answered():
            answer_put(_of(folded, entry.rollout), entry.answer)
            folded.asked.get(entry.rollout, {}).pop(entry.answer.key, None)
        case Finished():
            record = _of(folded, entry.rollout)
            record.attempt, record.status, record.result = entry.attempt, entry.status, entry.result
            if not record.stamped:
                record.answers = []
            folded.asked.pop(entry.rollout, None)
        case Dropped():
            folded.rollouts.pop(entry.rollout, None)
            folded.asked.pop(entry.rollout, None)
        case WholeRollout():
            folded.rollouts[entry.record.id] = entry.record
            folded.asked.pop(entry.record.id, None)
        case Started():
            folded.started = entry
            folded.begun = max(folded.begun, entry.mark)
            folded.epoch = max(folded.epoch, entry.epoch)
            folded.committed = max(folded.committed, entry.committed)
        case Adopted():
            folded.epoch = max(folded.epoch, entry.epoch)
        case Saved():
            folded.committed = max(folded.committed, entry.mark)
        case Marked():
            folded.marked = max(folded.marked, entry.mark)
        case _:
            folded.unreadable.append(
                ("", f"An agent's log has no entries of the kind {type(entry).__name__}.")
            )


def _dispatched(record: RolloutRecord, entry: Dispatched) -> None:
    if record.incarnation and record.incarnation != entry.incarnation:
        # The line that said it begins anew cannot be read: what was before is none of this one.
        record.answers, record.status, record.result = [], 0, b""
    record.attempt, record.path, record.stamped = entry.attempt, entry.path, entry.stamped
    record.body, record.row, record.incarnation = entry.body, entry.row, entry.incarnation


def _of(folded: Folded, rollout: str) -> RolloutRecord:
    return folded.rollouts.setdefault(rollout, RolloutRecord(id=rollout))
