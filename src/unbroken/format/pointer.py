"""``POINTER.json``: what a framework keeps in place of a checkpoint: where it lies, and its digest.

No object of a run: it lies wherever the framework puts its own checkpoints, is copied and deleted as it
likes, and holds nothing but names. See docs/format.md §14.
"""

from __future__ import annotations

from unbroken.format.digest import DigestField
from unbroken.format.records import SequenceField, StepField
from unbroken.format.wire import Record

FILE = "POINTER.json"


class Pointer(Record, frozen=True, kw_only=True, tag="pointer"):
    """The commit `sequence` of the run `job` below `root`; `digest` is that of its manifest."""

    root: str
    job: str
    sequence: SequenceField
    digest: DigestField
    step: StepField
