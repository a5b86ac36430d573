"""Steps, as people and torch's `checkpoint_id` give them."""

from __future__ import annotations

import os

from unbroken.errors import ConfigError


def step_of(given: object) -> int:
    """Return the step that an argument means.

    >>> step_of("100"), step_of(100)
    (100, 100)

    Raises:
        ConfigError: it is no step.
    """
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str) and given.isascii() and given.isdigit():
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigError(
            f"{given!r} is no step of a run.",
            hint="Give the step as a whole number; where the run lies is said by the root.",
        )
    return given


def is_step(given: object) -> bool:
    """Return whether an argument means a step."""
    try:
        step_of(given)
    except ConfigError:
        return False
    return True
