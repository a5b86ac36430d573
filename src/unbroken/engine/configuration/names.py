"""The other names of settings: the keys of the file that say one in words of its own, and those that are slips.

Invariant: whoever uses such a name where it is none, as a variable or as a keyword, is told the right one; it is never
ignored in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

MEANS = {
    "save_every_n_steps": "every",
    "save_every_n_episodes": "every",
    "save_every_n_hours": "every",
    "storage_path": "root",
    "max_checkpoints": "keep_last",
    "serialization.format": "document_format",
    "serialization.compression": "compression",
    "serialization.compression_level": "compression_level",
    "distributed.sync_timeout": "sync_timeout",
    "distributed.incremental_save": "incremental",
    "recovery.auto_resume": "resume",
    "recovery.resume_if_exists": "resume",
    "recovery.validate_state": "validate",
}
"""Keys below `checkpoint` that say a setting under another name."""

DEMANDS = frozenset({"checkpoint_format", "distributed.coordinator_rank"})
"""Keys that set nothing: what they say must hold, or the file is refused. They stand in the file only."""

_OF_FACES = {"save_freq": "every", "save_path": "root", "name_prefix": "job"}
"""What Stable-Baselines3 calls settings."""


def elsewhere(name: str) -> str:
    """Return the setting that a key of the file, or a face, calls by this name; an empty text if none does.

    >>> elsewhere("max_checkpoints"), elsewhere("recovery_auto_resume"), elsewhere("keep_last")
    ('keep_last', 'resume', '')
    """
    return "" if is_demand(name) else _ELSEWHERE.get(name.removeprefix("checkpoint_"), "")


def nearest(name: str, known: Collection[str], *, cutoff: float = 0.6) -> str:
    """Return which of the known names was meant, an empty text where none is near.

    >>> nearest("keep_lst", ["keep_first", "keep_last"])
    'keep_last'
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), "")


def meant(name: str, known: Collection[str]) -> str:
    """Return which of the known names was meant: what the file calls otherwise, else the nearest.

    >>> meant("max_checkpoints", ["keep_first", "keep_last"])
    'keep_last'
    """
    other = elsewhere(name)
    return other if other in known else nearest(name, known)


def is_demand(name: str) -> bool:
    """Whether this is a key that only the file can have."""
    return name in _spellings(DEMANDS)


def _spellings(keys: frozenset[str] | dict[str, str]) -> dict[str, str]:
    """Return each key by its last word, and with its section before it."""
    found: dict[str, str] = {}
    for key in keys:
        found |= {key.rpartition(".")[2]: key, key.replace(".", "_"): key}
    return found


_ELSEWHERE = _OF_FACES | {
    spelling: MEANS[key] for spelling, key in _spellings(MEANS).items() if spelling != MEANS[key]
}
