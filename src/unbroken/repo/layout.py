"""Names of everything in a run's directory.

All keys are relative to `<root>/<job>/` and use `/`. A name that stands in a document or comes from a
person passes through here before it becomes part of a key, so no name ever leaves the directory.

A write id ends in the epoch of its writer (`3f9c2e01ab44-e7`), so that a leftover without any commit
still says whose it was. Numbers are zero-padded to sort as text; longer ones stay valid.

Not promised: that an object of that name exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.errors import ConfigError
from unbroken.types import Epoch, Sequence, Step, WriteId

FORMAT = "format.json"
LATEST = "latest.txt"
PENDING = "pending.json"
BIRTH = "birth.json"
HISTORY = "history.jsonl"
LEASE = "lease.json"
LOCK = "lock"
LOW_WATER = "low-water.json"

STEPS = "steps/"
PACKS = "packs/"
COMMITS = "commits/"
EPOCHS = "epochs/"

META = "meta.json"
MANIFEST = "manifest.json"

DocumentFormat: TypeAlias = Literal["json", "msgpack"]

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_WRITE_ID = re.compile(r"([0-9a-f]{8,32})-e([1-9][0-9]{0,17})")
_STEP_KEY = re.compile(r"steps/(step_([0-9]{12,19})-([0-9a-f]{8,32}-e[1-9][0-9]{0,17}))/([^/]+)")
_PACK_KEY = re.compile(r"packs/([0-9a-f]{2})/([0-9a-f]{8,32}-e[1-9][0-9]{0,17})\.(pack|idx)")
_COMMIT_KEY = re.compile(r"commits/([0-9]{10,18})\.json")
_EPOCH_KEY = re.compile(r"epochs/([0-9]{10,18})\.(json|start)")
_RESERVED = frozenset({"meta", "manifest"})


def check_job(name: str) -> str:
    """Return `name` if it can be a run's directory.

    Raises:
        ConfigError: it is empty, too long, or holds anything but letters, digits, `.`, `_` and `-`.
    """
    if not _JOB.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a run.",
            hint="Use up to 128 letters, digits, dots, dashes and underscores, starting with a letter or digit.",
        )
    return name


def is_job(name: str) -> bool:
    """Return whether `name` can be a run's directory."""
    return _JOB.fullmatch(name) is not None


def check_component(name: str) -> str:
    """Return `name` if it can name a component's document.

    Raises:
        ConfigError: it has characters that do not belong in a file name, or is taken by the format.
    """
    if not is_component(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a component.",
            hint="Use letters, digits, dots, dashes and underscores; 'meta' and 'manifest' are taken.",
        )
    return name


def is_component(name: str) -> bool:
    """Return whether `name` can name a component's document."""
    return _COMPONENT.fullmatch(name) is not None and name not in _RESERVED


def write_id(token: str, epoch: Epoch) -> WriteId:
    """Return the write id for a random hexadecimal token and its writer's epoch."""
    name = f"{token}-e{epoch}"
    if not _WRITE_ID.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be a write id.", hint="The token is 8 to 32 hexadecimal digits.")
    return WriteId(name)


def epoch_of(name: WriteId) -> Epoch | None:
    """Return the epoch in a write id, or None where it is not one of ours."""
    match = _WRITE_ID.fullmatch(name)
    return Epoch(int(match.group(2))) if match else None


def step_directory(step: Step, write: WriteId) -> str:
    """Return the directory of one checkpoint, with a slash at the end.

    >>> step_directory(Step(12000), WriteId("3f9c2e01ab44-e7"))
    'steps/step_000000012000-3f9c2e01ab44-e7/'
    """
    return f"{STEPS}step_{step:012d}-{write}/"


def is_step_directory(name: str) -> bool:
    """Return whether `name` is the directory of a checkpoint, as a commit record may name it."""
    return _STEP_KEY.fullmatch(name + "x") is not None


def document(directory: str, component: str, fmt: DocumentFormat) -> str:
    """Return the key of a component's document."""
    return f"{directory}{component}.{fmt}"


def pack(pack_id: WriteId) -> str:
    """Return the key of a pack.

    >>> pack(WriteId("3f9c2e01ab44-e7"))
    'packs/3f/3f9c2e01ab44-e7.pack'
    """
    return f"{PACKS}{pack_id[:2]}/{pack_id}.pack"


def index(pack_id: WriteId) -> str:
    """Return the key of a pack's index."""
    return f"{PACKS}{pack_id[:2]}/{pack_id}.idx"


def commit(sequence: Sequence) -> str:
    """Return the key of a commit record.

    >>> commit(Sequence(42))
    'commits/0000000042.json'
    """
    return f"{COMMITS}{sequence:010d}.json"


def epoch(number: Epoch) -> str:
    """Return the key of an epoch's claim."""
    return f"{EPOCHS}{number:010d}.json"


def epoch_start(number: Epoch) -> str:
    """Return the key of an epoch's start record."""
    return f"{EPOCHS}{number:010d}.start"


@dataclass(frozen=True, slots=True)
class StepObject:
    """One object of a checkpoint: its directory, whose attempt that was, and its name there."""

    directory: str
    step: Step
    write_id: WriteId
    name: str


@dataclass(frozen=True, slots=True)
class PackObject:
    """A pack or its index."""

    pack_id: WriteId
    kind: Literal["pack", "idx"]


def parse_step(key: str) -> StepObject | None:
    """Return what a key under `steps/` names, or None for a foreign object."""
    match = _STEP_KEY.fullmatch(key)
    if match is None:
        return None
    directory, step, write, name = match.groups()
    return StepObject(f"{STEPS}{directory}/", Step(int(step)), WriteId(write), name)


def parse_pack(key: str) -> PackObject | None:
    """Return what a key under `packs/` names, or None for a foreign object."""
    match = _PACK_KEY.fullmatch(key)
    if match is None or not match.group(2).startswith(match.group(1)):
        return None
    return PackObject(WriteId(match.group(2)), "pack" if match.group(3) == "pack" else "idx")


def parse_commit(key: str) -> Sequence | None:
    """Return the sequence number of a commit record's key, or None for a foreign object."""
    match = _COMMIT_KEY.fullmatch(key)
    if match is None or commit(Sequence(int(match.group(1)))) != key:
        return None
    return Sequence(int(match.group(1)))


def parse_epoch(key: str) -> tuple[Epoch, bool] | None:
    """Return (epoch, whether this is its start record), or None for a foreign object."""
    match = _EPOCH_KEY.fullmatch(key)
    if match is None:
        return None
    return Epoch(int(match.group(1))), match.group(2) == "start"
