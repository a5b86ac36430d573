"""Names that come from people or from a listing.

`format.layout` says where each object lies. Here is what must be checked before a name becomes a
directory, and whose leftovers an object is.

A write id made here ends in the epoch of its writer (`3f9c2e01ab44e7`: epoch 7), so that a leftover
without any commit still says whose it was. Objects whose names are not understood belong to somebody
else: they are never touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from unbroken.errors import ConfigError
from unbroken.format import layout
from unbroken.types import Epoch, Step, WriteId

TOKEN_DIGITS = 12
LOCK = "lock"
"""The file that the operating system's lock is taken on. Empty, and no object of the format."""

_JOB = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._ =+,-]{0,126}[A-Za-z0-9._=+,-])?")
_TOKEN = re.compile(r"[0-9a-f]{12}")
_WRITE_ID = re.compile(r"[0-9a-f]{12}e([1-9][0-9]{0,9})")
_STEP_OBJECT = re.compile(r"(steps/step_([0-9]{12,18})-([0-9a-f]{12}e[1-9][0-9]{0,9}))/([^/]+)")


def is_job(name: str) -> bool:
    """Return whether `name` can be a run's directory."""
    return _JOB.fullmatch(name) is not None


def check_job(name: str) -> str:
    """Return `name` if it can be a run's directory.

    Raises:
        ConfigError: it is empty, too long, or holds anything but letters, digits, spaces and `._=+,-`.
    """
    if not is_job(name):
        raise ConfigError(
            f"{name[:140]!r} cannot be the name of a run.",
            hint="Use up to 128 letters, digits, spaces and characters of ._=+,- , and begin with a letter,"
            " a digit or an underscore.",
        )
    return name


def write_id(token: str, epoch: Epoch) -> WriteId:
    """Return the write id for a random token of 12 hexadecimal digits and its writer's epoch.

    >>> write_id("3f9c2e01ab44", Epoch(7))
    '3f9c2e01ab44e7'
    """
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{token!r} cannot begin a write id.", hint="Give 12 hexadecimal digits.")
    return WriteId(f"{token}e{epoch}")


def epoch_of(name: str) -> Epoch | None:
    """Return the epoch in a write id, or None where it was not made here."""
    match = _WRITE_ID.fullmatch(name)
    return Epoch(int(match[1])) if match else None


@dataclass(frozen=True, slots=True)
class StepObject:
    """One object of a checkpoint: its directory, whose attempt that was, and its name there."""

    directory: str
    step: Step
    write_id: WriteId
    name: str


def parse_step_object(key: str) -> StepObject | None:
    """Return what a key under `steps/` names, or None for a foreign object."""
    match = _STEP_OBJECT.fullmatch(key)
    if match is None:
        return None
    return StepObject(match[1], Step(int(match[2])), WriteId(match[3]), match[4])


def epoch_start_number(key: str) -> Epoch | None:
    """Return the number of the epoch whose start record has this key, or None."""
    stem, found, _ = key.partition(".start.json")
    number = layout.epoch_number(f"{stem}.json") if found else None
    return number if number is not None and layout.epoch_start(number) == key else None
