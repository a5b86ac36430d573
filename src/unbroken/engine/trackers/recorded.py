"""Which runs of trackers a run was logged to, as its checkpoints tell.

Invariant: reading only. What a checkpoint does not tell, or tells wrongly, is as if it had said nothing.

Not promised: that such a run still exists; only its service knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from unbroken.engine.metadata import TRACKERS
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, CorruptObject, ObjectMissing
from unbroken.repo.repository import Repository


def recorded(settings: Settings) -> dict[str, dict[str, str]]:
    """Return what the newest readable checkpoint tells of a run; where there is none, of its mirror. A run that is
    to begin anew has nothing to go on with.

    Raises:
        StoreError: the store failed.
    """
    return told(counters_of(settings))


def counters_of(settings: Settings, *, segment: int | None = None) -> Mapping[str, Any]:
    """Return the counters of that checkpoint; of a `segment`, of its newest one.

    Raises:
        StoreError: the store failed.
    """
    if settings.resume == "never":
        return {}
    for root in (settings.root, settings.mirror):
        if not root:
            continue
        try:
            repository = Repository.open(root, settings.job)
        except ConfigError:
            continue  # a run that is not there yet; what else may be wrong, the engine says
        for commit in repository.commits():
            if segment is not None and commit.segment != segment:
                continue
            try:
                return repository.meta(commit).counters
            except (CorruptObject, ObjectMissing):
                continue  # the engine tells of it
    return {}


def told(counters: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return what the counters of one checkpoint say."""
    return {
        kind: {name: str(value) for name, value in _dict(identity).items()}
        for kind, identity in _dict(counters.get(TRACKERS)).items()
        if _dict(identity)
    }


def _dict(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
