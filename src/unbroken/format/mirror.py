"""``mirror.json``: which run a mirror belongs to. The same record lies in the run and in its mirror; see docs/format.md."""

from __future__ import annotations

from unbroken.format.records import Record, WriteIdField

MIRROR = "mirror.json"


class MirrorRecord(Record, frozen=True, kw_only=True, tag="mirror"):
    """A run and its mirror hold the same `id`, drawn when they first met."""

    id: WriteIdField
