"""Which runs there are under the root, by the names that addresses of pages have for them.

Invariants: no path is ever made from an address. An address names an entry of what a search of the root has found, or
nothing; and what was found is opened only where it still lies below the root, reached through no symbolic link.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unbroken.errors import ConfigError, StoreUnavailable
from unbroken.format.layout import FORMAT
from unbroken.inspection import bucket
from unbroken.inspection.remembered import Memory, remembering
from unbroken.inspection.target import open_run, runs_below
from unbroken.repo.repository import Repository
from unbroken.repo.roots import is_url, root_of

FRESH = 2.0
"""Seconds for which a search of a directory is believed,"""
FRESH_BUCKET = 15.0
"""and one of a bucket, where each costs requests."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `name` is where it lies below the root, `address` what pages call it, `where` its path or URL. A name and a path
    may hold bytes that are no text, as Python has those of files; an address does not."""

    name: str
    address: str
    where: str


@dataclass(slots=True)
class Catalogue:
    """The runs under a root, which is a directory, a place in a bucket, or a single run."""

    root: str
    clock: Callable[[], float] = time.monotonic
    memory: Memory = field(default_factory=Memory)
    _found: Mapping[str, Run] = field(default_factory=dict[str, Run])
    _until: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_bucket(self) -> bool:
        return is_url(self.root) and not self.root.startswith("file://")

    def check(self) -> None:
        """Look for the root.

        Raises:
            ConfigError: it cannot be one.
            StoreError: its store does not answer.
        """
        if not self.is_bucket and not Path(root_of(self.root).text).is_dir():
            raise ConfigError(
                f"{self.root} is no directory.",
                hint="Give the root that a training writes to, or will write to.",
            )
        self.runs()

    def runs(self) -> list[Run]:
        """Return all runs, by name."""
        with self._lock:
            if self.clock() >= self._until:
                self._found = {run.address: run for run in self._search()}
                self._until = self.clock() + (FRESH_BUCKET if self.is_bucket else FRESH)
            return list(self._found.values())

    def run(self, address: str) -> Run | None:
        """Return the run that an address names; None if there is none."""
        self._check_there()
        known = self._found.get(address)
        if known is None:
            known = next((run for run in self.runs() if run.address == address), None)
        return known if known is not None and self._is_below(known) else None

    def open(self, run: Run) -> Repository:
        """Open a run for looking only; what never changes is remembered from one page to the next.

        Raises:
            UnbrokenError: it cannot be read.
        """
        return remembering(open_run(run.where), run.where, self.memory)

    def _check_there(self) -> None:
        """Look whether the root is still there: a root that is gone is not one without runs.

        Raises:
            StoreUnavailable: it is not.
            OSError: it cannot be looked at.
        """
        if self.is_bucket:
            return
        try:
            os.scandir(root_of(self.root).text).close()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreUnavailable(
                f"{self.root} is gone.", hint="If it comes back, its runs will show up here by themselves."
            ) from error

    def _search(self) -> list[Run]:
        self._check_there()
        if self.is_bucket:
            place = root_of(self.root).text
            return [
                _named(url.removeprefix(place).strip("/") or bucket.split(url)[1], url)
                for url in bucket.runs_at(place)
            ]
        root = Path(root_of(self.root).text)
        return [
            _named(str(path.relative_to(root)) if path != root else root.resolve().name, str(path))
            for path in runs_below(root)
            if self._is_inside(path)
        ]

    def _is_below(self, run: Run) -> bool:
        return self.is_bucket or (
            self._is_inside(Path(run.where)) and os.path.isfile(f"{run.where}/{FORMAT}")
        )

    def _is_inside(self, path: Path) -> bool:
        """Whether a path lies below the root by names that are no links."""
        root = Path(root_of(self.root).text)
        return os.path.realpath(path) == os.path.join(os.path.realpath(root), path.relative_to(root)).rstrip(
            "/."
        )


def _named(name: str, where: str) -> Run:
    return Run(name, address_of(name), where)


def address_of(name: str) -> str:
    r"""Return what stands for a run's name in an address: text without a slash, and never the name of another run.

    >>> address_of("dqn/seed-1"), address_of("a~1b"), address_of(os.fsdecode(b"r\xff"))
    ('dqn~1seed-1', 'a~01b', 'r~2dcff')
    """
    plain = name.replace("~", "~0").replace("/", "~1")
    return "".join(f"~2{ord(one):04x}" if "\ud800" <= one <= "\udfff" else one for one in plain)
