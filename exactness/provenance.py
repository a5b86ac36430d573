"""Where figures come from: the day, the commit, the machine and the versions. Each figure keeps its own.

Invariant: a figure that is written down names a commit that holds all that it was measured with.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import msgspec

from benchmarks.machine import commit, processor

ROOT = Path(__file__).parents[1]


class Uncommitted(Exception):
    """What measures, or what is measured, differs from every commit."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know about how one figure came about."""

    date: str
    """The day, of UTC."""
    commit: str
    machine: str
    """Cores, processor and kernel in words."""
    versions: dict[str, str]

    @property
    def said(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.date} at commit {self.commit}: {versions}; {self.machine}"


def here(packages: Sequence[str], root: Path = ROOT) -> Provenance:
    """Return what is true of a figure that is measured now.

    Raises:
        Uncommitted: `src` or `exactness` below `root` has changes that no commit has, or there is no commit.
    """
    at = commit(root, "exactness")
    if not at or at.endswith("+"):
        raise Uncommitted(
            f"{root} is at commit {at or 'none'}: commit what measures and what is measured, or use a clone."
        )
    return Provenance(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        commit=at,
        machine=f"{len(os.sched_getaffinity(0))} cores of {processor()}, Linux {platform.release()}",
        versions={name: metadata.version(name) for name in packages},
    )


def told(command: str, option: str, found: dict[str, Provenance]) -> str:
    r"""Return a line for all figures that came about together, with the command that measures them.

    >>> one = Provenance(date="2026-01-02", commit="1a2b3c4", machine="2 cores", versions={"torch": "2"})
    >>> told("measure", "", {"a": one, "b": one})
    '`measure`, 2026-01-02 at commit 1a2b3c4: torch 2; 2 cores.'
    >>> told("measure", " --only", {"a": one, "b": msgspec.structs.replace(one, commit="5d6e7f8")}).count("\n")
    1
    """
    groups: dict[str, list[str]] = {}
    for name, provenance in found.items():
        groups.setdefault(provenance.said, []).append(name)
    return "\n".join(
        f"`{command}{''.join(f'{option} {name}' for name in names) if len(groups) > 1 else ''}`, {said}."
        for said, names in groups.items()
    )
