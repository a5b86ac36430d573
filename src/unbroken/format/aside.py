"""``aside.json``: checkpoints that were there when a run began anew. See docs/format.md §18."""

from __future__ import annotations

from unbroken.format.records import Owner, SequenceField

ASIDE = "aside.json"


class Aside(Owner, frozen=True, kw_only=True, tag="aside"):
    """Which commits retention keeps without counting them, until a person prunes the run; `time` is of the newest
    start that has set any aside."""

    sequences: list[SequenceField]
