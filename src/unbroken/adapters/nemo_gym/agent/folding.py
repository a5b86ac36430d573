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
    RolloutRecord,
    Started,
    WholeRollout,
)


@dataclass(slots=True)
class Folded:
    rollouts: dict[str, RolloutRecord] = field(default_factory=dict[str, RolloutRecord])
    asked: dict[tuple[str, str], Asked] = field(default_factory=dict[tuple[str, str], Asked])
    """Calls without an answer, by rollout and key."""
    births: dict[str, int] = field(default_factory=dict[str, int])
    """Of rollouts that were dropped: the next one's."""
    started: Started | None = None
    """The newest start."""
    epoch: int = 0
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


def _take(folded: Folded, entry: records.Entry) -> None:
    match entry:
        case Dispatched():
            record = _of(folded, entry.rollout)
            record.attempt, record.path = entry.attempt, entry.path
            record.body, record.stamped, record.birth = entry.body, entry.stamped, entry.birth
        case Asked():
            _of(folded, entry.rollout)
            folded.asked[entry.rollout, entry.key] = entry
        case Answered():
            answer_put(_of(folded, entry.rollout), entry.answer)
            folded.asked.pop((entry.rollout, entry.answer.key), None)
        case Finished():
            record = _of(folded, entry.rollout)
            record.attempt, record.status, record.result = entry.attempt, entry.status, entry.result
            if not record.stamped:
                record.answers = []
            _forget_asked(folded, entry.rollout)
        case Dropped():
            gone = folded.rollouts.pop(entry.rollout, None)
            folded.births[entry.rollout] = 1 if gone is None else gone.birth + 1
            _forget_asked(folded, entry.rollout)
        case WholeRollout():
            folded.rollouts[entry.record.id] = entry.record
            _forget_asked(folded, entry.record.id)
        case Started():
            folded.started = entry
            folded.epoch = max(folded.epoch, entry.epoch)
        case Adopted():
            folded.epoch = max(folded.epoch, entry.epoch)
        case _:
            folded.unreadable.append(
                ("", f"An agent's log has no entries of the kind {type(entry).__name__}.")
            )


def _of(folded: Folded, rollout: str) -> RolloutRecord:
    return folded.rollouts.setdefault(rollout, RolloutRecord(id=rollout))


def _forget_asked(folded: Folded, rollout: str) -> None:
    for key in [key for key in folded.asked if key[0] == rollout]:
        del folded.asked[key]
