"""The other names of settings: the keys of the file that say one in words of its own.

Invariant: whoever uses such a name where it is none, as a variable or as a keyword, is told the right one; it is never
ignored in silence.
"""

from __future__ import annotations

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
