"""How what older versions of the format have written is read: one module here for each version that changed something.

A module `from_N.py` holds one `Migration`, which turns what version N has written into what N + 1 writes; a reader goes
from one to the next up to its own version. Nothing on disk is rewritten: checkpoints are immutable, and a run may lie
where nobody can write. What is read stays what it was; only its spelling is newer.

Version 0 may change in any commit, with its golden files, so it has no migration. The first one will be `from_1.py`.
Not promised: that an older Unbroken reads a newer version. It refuses, by name (`UnsupportedFormat`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Plain: TypeAlias = dict[str, Any]
"""A record or a document as JSON or MessagePack holds it, before anything is known of its fields."""


def _unchanged(plain: Plain) -> Plain:
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """From version `reads` to the next. Of records, `plain["record"]` says of which kind they are."""

    reads: int
    record: Callable[[Plain], Plain] = _unchanged
    document: Callable[[Plain], Plain] = _unchanged


MIGRATIONS: tuple[Migration, ...] = ()
"""In the order of the versions that they read."""


def record(plain: Plain, *, version: int) -> Plain:
    """Return a record of version `version` as this package writes it."""
    return _through(plain, [migration.record for migration in MIGRATIONS if migration.reads >= version])


def document(plain: Plain, *, version: int) -> Plain:
    """Return a component's document of version `version` as this package writes it."""
    return _through(plain, [migration.document for migration in MIGRATIONS if migration.reads >= version])


def _through(plain: Plain, steps: list[Callable[[Plain], Plain]]) -> Plain:
    for step in steps:
        plain = step(plain)
    return plain


def is_older(version: object) -> bool:
    """Whether something of this version has to be migrated before it is read."""
    return type(version) is int and any(migration.reads >= version for migration in MIGRATIONS)
