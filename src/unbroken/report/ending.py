"""How the process before a start had ended, in words for people: programs read the class (`soft`) itself."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.engine.faults import FaultKind

_ENDED: Mapping[str, str] = {
    FaultKind.CLEAN.value: "closed the run",
    FaultKind.SOFT.value: "killed or crashed",
    FaultKind.HARD.value: "host restarted, or another one",
    FaultKind.DATA.value: "checkpoint damaged",
}


def ended(kind: str) -> str:
    """Return the words of a class of faults; of one that only a later version knows its name.

    >>> ended("soft"), ended("later")
    ('killed or crashed', 'later')
    """
    return _ENDED.get(kind, kind)
