"""``pins/<name>.json``: somebody holds on to commits of this run, for a bounded time. See docs/format.md §13."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from unbroken.format.records import Owner, SequenceField

PINS = "pins"


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Retention keeps commit `sequence` until `until`, as its own clock tells."""

    sequence: SequenceField
    until: float


class Pin(Owner, frozen=True, kw_only=True, tag="pin"):
    """What the run `job` holds on to; `reason` is for people."""

    holds: list[Hold]
    reason: str = ""


def pin(name: str) -> str:
    """Return the key of the pin of this name, which is a run's, or begins with one.

    >>> pin("pbt a1b2c_00001")
    'pins/pbt%20a1b2c_00001.json'
    """
    return f"{PINS}/{quote(name, safe='+,=')}.json"
