"""A commit as the rest of the program sees it: one checkpoint that exists.

Not promised: that its objects are undamaged. Whoever loads it checks every digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from unbroken.types import Digest, Epoch, Sequence, Step, WriteId

Position: TypeAlias = Literal["start", "step", "end"]
"""Where in its segment (one `learn()` call) a checkpoint was taken."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed checkpoint.

    `directory` holds its documents, relative to the run. `good` is False if the weights held a
    non-finite number. `metrics` are those known at the save, for the choice of the best.
    """

    sequence: Sequence
    step: Step
    segment: int
    epoch: Epoch
    write_id: WriteId
    directory: str
    manifest_digest: Digest
    time: float
    good: bool
    position: Position
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"commit {self.sequence} (step {self.step})"


@dataclass(frozen=True, slots=True)
class BrokenCommit:
    """A commit record that exists and cannot be read. `problem` is one sentence."""

    sequence: Sequence
    key: str
    problem: str
