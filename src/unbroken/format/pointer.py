"""``POINTER.json``: what a framework keeps in place of a checkpoint: where it lies, and its digest.

No object of a run: it lies wherever the framework puts its own checkpoints, is copied and deleted as it
likes, and holds nothing but names. See docs/format.md §14.
"""

from __future__ import annotations

from unbroken.format.digest import DigestField
from unbroken.format.ranks import WorldSize
from unbroken.format.records import DirectoryField, SequenceField, StepField
from unbroken.format.wire import Record

FILE = "POINTER.json"


class Pointer(Record, frozen=True, kw_only=True, tag="pointer"):
    """The commit `sequence` of the run `job` below `root`; `digest` is that of its manifest.

    For people: the `directory` of the checkpoint inside the run, and how many ranks have written it.
    """

    root: str
    job: str
    sequence: SequenceField
    digest: DigestField
    step: StepField
    world_size: WorldSize = 1
    directory: DirectoryField | None = None
