"""A module that counts for others."""

from __future__ import annotations

steps = 0


def count() -> int:
    global steps
    steps += 1
    return steps
