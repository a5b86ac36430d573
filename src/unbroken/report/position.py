"""Where in a training a checkpoint was taken, in words."""

from __future__ import annotations

from unbroken.format.records import Position

_WORDS: dict[Position, str] = {"start": "at the start", "step": "in training", "end": "at the end"}


def where(position: Position, segment: int = 0) -> str:
    """Return the point in a training, with its number where a script has several, counted from 1.

    >>> where("end"), where("step", 1)
    ('at the end', 'in training (2)')
    """
    return _WORDS[position] + (f" ({segment + 1})" if segment else "")
