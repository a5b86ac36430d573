"""``saves/…``: one small record for every save, which outlives its checkpoint. See docs/format.md.

Retention deletes checkpoints; what a person wants to see of a training as a whole, curves and costs, must not go
with them. Pure: `repo.saves` reads and writes them.

Invariant: what is kept of a run stays below `MOST` records of a bounded size, however long it trains.
Not promised: anything on which a training could rest. No reader of checkpoints needs these records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from unbroken.format.meta import Meta
from unbroken.format.records import Commit, Count, EpochField, Position, Record, StepField
from unbroken.types import Epoch, Fidelity

SAVES = "saves"
ELSEWHERE = Epoch(0)
"""Below this number stand records that came with a copy. No writer has this epoch."""

NEWEST = 1000
"""So many of the newest records are all kept."""
MOST = 2000
"""When a run has more, the older ones are thinned out, evenly, to at most half of what is not `NEWEST`."""
MOST_METRICS = 64
LONGEST_NAME = 128
LONGEST_REASON = 200

_KEY = re.compile(r"saves/([0-9]{10})\.jsonl\Z", re.ASCII)


class SaveRecord(Record, frozen=True, kw_only=True, tag="save"):
    """What is known of one save. Times are in seconds, sizes in bytes; None: nobody knows.

    A record without `durable` was put together from what lies beside the checkpoint, which is written before that
    can be known.
    """

    sequence: Count
    """Of its commit; 0: it was saved by another run, of which this one is a copy."""
    step: StepField
    segment: Count = 0
    position: Position = "step"
    epoch: EpochField = Epoch(0)
    """Of its writer: each start of the run, and each loss of a writing process, makes a new one."""
    time: float = 0.0
    """When it was taken, since 1970-01-01 UTC."""
    reason: str = ""
    episodes: Count = 0
    metrics: dict[str, float] = {}
    """The first `MOST_METRICS` of those that the checkpoint has."""
    good: bool = True
    """False: NaN or infinity in the weights."""
    blocked: float | None = None
    """How long training stood still for it."""
    durable: float | None = None
    """From when the writer began until the commit existed."""
    bytes: Count | None = None
    """Bytes in blobs, uncompressed, those that older checkpoints have included."""
    written: Count | None = None
    """Bytes that were new on the disk: blobs as they are stored, and documents."""
    inexact: Count | None = None
    """How many components are not exact."""


def saves(epoch: Epoch) -> str:
    """Return the key of the records that the writer of an epoch has left.

    >>> saves(Epoch(7))
    'saves/0000000007.jsonl'
    """
    return f"{SAVES}/{epoch:010d}.jsonl"


def saves_epoch(key: str) -> Epoch | None:
    """Return the epoch that a key of records stands for; None for any other key."""
    match = _KEY.match(key)
    return Epoch(int(match[1])) if match else None


def moment(record: SaveRecord | Commit) -> tuple[object, ...]:
    """Return what the save of a checkpoint and of its copies have in common."""
    return (record.segment, record.step, record.position, record.time)


def of_checkpoint(commit: Commit, meta: Meta | None, *, durable: float | None = None) -> SaveRecord:
    """Return the record of a checkpoint; `meta` is None where it cannot be read."""
    known = SaveRecord(
        sequence=commit.sequence,
        step=commit.step,
        segment=commit.segment,
        position=commit.position,
        epoch=commit.epoch,
        time=commit.time,
        metrics=_bounded(commit.metrics),
        good=commit.good,
        durable=durable,
    )
    if meta is None:
        return known
    written = [cost.written for cost in meta.cost.values()]
    counted = [count for count in written if count is not None]
    return msgspec.structs.replace(
        known,
        reason=meta.reason[:LONGEST_REASON],
        episodes=meta.episodes,
        blocked=meta.seconds_blocked,
        bytes=meta.bytes,
        written=sum(counted) if counted and len(counted) == len(written) else None,
        inexact=sum(promise.fidelity is not Fidelity.EXACT for promise in meta.fidelity.values()),
    )


def kept(sequences: Sequence[int], *, most: int = MOST, newest: int = NEWEST) -> frozenset[int]:
    """Return which places of a list of records stay, if the list, oldest first, has these numbers.

    All of them up to `most`. Of more, the `newest`, and of the older ones those whose number is divisible by a power
    of two: the least with which few enough are left. The same ones are left when it is done again later, so what stays
    is spread evenly over the whole training. Records of another run, whose number is 0, are divided by their place.
    """
    if len(sequences) <= most:
        return frozenset(range(len(sequences)))
    older = len(sequences) - newest
    numbers = [sequence or place for place, sequence in enumerate(sequences[:older])]
    apart = 2
    while (
        len(left := [place for place, number in enumerate(numbers) if number % apart == 0])
        > (most - newest) // 2
    ):
        apart *= 2
    return frozenset([*left, *range(older, len(sequences))])


def _bounded(metrics: Mapping[str, float]) -> dict[str, float]:
    short = [name for name in metrics if len(name) <= LONGEST_NAME]
    return {name: metrics[name] for name in short[:MOST_METRICS]}
