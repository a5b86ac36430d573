"""The records of a run, beside manifests and metadata.

`docs/format.md` says where each lies and which rules hold between them. Those by which several ranks agree
are in `ranks`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from unbroken.errors import CorruptObject, UnsupportedFormat
from unbroken.format import wire
from unbroken.format.digest import DigestField
from unbroken.format.wire import FORMAT_VERSION, Record
from unbroken.types import Epoch, Sequence, Step, WriteId

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of something, or a size in bytes."""

SequenceField: TypeAlias = Annotated[Sequence, msgspec.Meta(ge=1, lt=10**10)]
EpochField: TypeAlias = Annotated[Epoch, msgspec.Meta(ge=0, lt=10**10)]
StepField: TypeAlias = Annotated[Step, msgspec.Meta(ge=0, lt=10**18)]
WriteIdField: TypeAlias = Annotated[WriteId, msgspec.Meta(pattern=r"^[0-9a-z]{1,64}\Z")]
DirectoryField: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^steps/step_[0-9]{12,18}-[0-9a-z]{1,64}\Z")]
"""A checkpoint's directory: no record can name a place outside ``steps/``."""

BirthField: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^(?:(?:b3|sha256):[0-9a-f]{64})?\Z")]
"""The digest of a birth document; empty: none."""

Position: TypeAlias = Literal["start", "step", "end"]
"""Where in a segment a checkpoint was taken: before its first step, at a step, after its last."""

MAGIC = "unbroken"

FEATURES: frozenset[str] = frozenset()
"""Mandatory features that this package understands, beyond the version's own."""


class Owner(Record, frozen=True, kw_only=True):
    """A record that names the process that wrote it. `process_start` tells a process from a later
    one with the same pid: as the operating system counts it; empty if unknown."""

    job: str = ""
    pid: int = 0
    process_start: str = ""
    host: str = ""
    boot_id: str = ""
    time: float = 0.0


class Commit(Record, frozen=True, kw_only=True, tag="commit"):
    """``commits/<sequence>.json``, create-only. With this record, and not before, the checkpoint exists."""

    sequence: SequenceField
    step: StepField
    segment: Count = 0
    epoch: EpochField = Epoch(0)
    write_id: WriteIdField
    directory: DirectoryField
    manifest_digest: DigestField
    time: float = 0.0
    good: bool = True
    position: Position = "step"
    metrics: dict[str, float] = {}
    birth: BirthField = ""


class Pending(Owner, frozen=True, kw_only=True, tag="pending"):
    """``pending.json``: a save of this step was started. Written before `save()` returns."""

    step: StepField
    segment: Count = 0
    reason: str = ""
    epoch: EpochField = Epoch(0)


class EpochRecord(Owner, frozen=True, kw_only=True, tag="epoch"):
    """``epochs/<epoch>.json``, create-only: this process claims the right to write to the run."""

    epoch: EpochField
    write_id: WriteIdField


class EpochStart(Record, frozen=True, kw_only=True, tag="epoch-start"):
    """``epochs/<epoch>.start.json``, create-only: the first sequence number that belongs to the epoch.

    A commit of a smaller epoch with this number or a larger one does not count.
    """

    epoch: EpochField
    first: SequenceField
    write_id: WriteIdField


class HistoryRecord(Owner, frozen=True, kw_only=True, tag="history"):
    """One line of ``history.jsonl``: how a process started or ended, or why it was refused a start."""

    event: Literal["start", "end", "refused"] = "start"
    epoch: EpochField = Epoch(0)
    fault: str = ""
    """What ended the process before: clean, soft, hard, data, or empty on the first start."""
    tier: str = ""
    """How far recovery fell: newest, older, rebuilt, fresh."""
    sequence: Count = 0
    """The commit that was restored; 0: none."""
    step: StepField = Step(0)
    steps_lost: int = -1
    """Steps that had been done after the restored one, as far as it is known; -1: unknown."""
    lost_at_least: bool | msgspec.UnsetType = msgspec.UNSET
    """True where there may have been more of them than `steps_lost`; else it is not written."""
    seconds: float = 0.0
    """From when the run was opened, waiting included, until training could go on."""
    reasons: list[str] = []
    changes: list[str] = []


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the trainer has started, on its host and in its boot."""

    pid: int
    process_start: str = ""


class Lease(Owner, frozen=True, kw_only=True, tag="lease"):
    """``lease.json``, overwritten: the process that writes to the run. Gone when it has ended in order.

    `companion` writes its checkpoints, and goes on with the last of them when it is killed.
    """

    epoch: EpochField
    companion: Worker | None = None


class WorkersRecord(Owner, frozen=True, kw_only=True, tag="workers"):
    """``workers.json``: the environment workers of the trainer that this record names."""

    workers: list[Worker] = []


class LowWater(Record, frozen=True, kw_only=True, tag="low-water"):
    """``low_water.json``: commits below `sequence` may have been deleted; such numbers are never used again."""

    sequence: SequenceField
    epoch: EpochField = Epoch(0)


class FormatRecord(Record, frozen=True, kw_only=True, tag="format"):
    """``format.json``: what a reader must understand before it touches anything else."""

    magic: str = MAGIC
    mandatory: list[str] = []
    optional: list[str] = []


def decode_format(data: bytes, *, key: str = "format.json") -> FormatRecord:
    """Return the format record; raise `UnsupportedFormat` if this package cannot read such a run."""
    record = wire.decode(data, FormatRecord, key=key)
    if record.magic != MAGIC:
        raise CorruptObject(
            f"{key} does not belong to Unbroken: its magic is {record.magic[:40]!r}.", key=key
        )
    unknown = sorted(set(record.mandatory) - FEATURES)
    if unknown:
        raise UnsupportedFormat(
            f"The run needs {', '.join(map(repr, unknown))}, which this Unbroken does not know.",
            hint="Upgrade unbroken.",
        )
    return record


__all__ = [
    "FEATURES", "FORMAT_VERSION", "MAGIC", "Commit", "Count", "DirectoryField", "EpochField", "EpochRecord",
    "EpochStart", "FormatRecord", "HistoryRecord", "Lease", "LowWater", "Owner", "Pending", "Position",
    "Record", "SequenceField", "StepField", "Worker", "WorkersRecord",
    "WriteIdField", "decode_format",
]  # fmt: skip
