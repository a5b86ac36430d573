"""The runs under a root and their checkpoints, with what would keep a resume from each.

Not promised: that the arrays of a checkpoint are undamaged. Its documents are looked at, its arrays are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unbroken.errors import ConfigError, CorruptObject, UnbrokenError, UnsupportedFormat
from unbroken.format.records import Commit
from unbroken.inspection.target import open_run, runs_in
from unbroken.repo.aside import known_aside
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.reader import Reader
from unbroken.repo.repository import Repository
from unbroken.repo.retention import abandoned, saved_again
from unbroken.repo.settled import ATTEMPTS
from unbroken.types import Fidelity


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint. `problem` says why a resume would pass over it, as far as its arrays are not asked."""

    commit: Commit
    problem: str
    abandoned: bool
    """Training went back before this checkpoint and then on: no start goes on from it any more."""
    saved_again: bool
    """A later start has saved this very step once more, with a changed setting or towards a later end."""
    fidelity: Mapping[str, str]
    """Component -> `approximate` or `not captured`; those that are exact are left out."""
    components: int = 0
    """How many there are, exact or not."""
    aside: bool = False
    """A start began anew because this one and all others could not be used; it stays until a prune."""


@dataclass(frozen=True, slots=True)
class RunListing:
    """One run and its checkpoints, the latest written first; `problem` where it cannot be read at all."""

    run: str
    checkpoints: tuple[Listed, ...]
    problem: str = ""
    unreadable: tuple[str, ...] = ()
    """Why records of checkpoints, and of what holds their arrays, cannot be read."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All runs under a root."""

    root: str
    runs: tuple[RunListing, ...]


def list_runs(root: str) -> Listing:
    """Return the runs that a path or URL is or holds.

    Raises:
        ConfigError: there are none.
    """
    found = runs_in(root)
    if not found:
        raise ConfigError(
            f"{root} holds no runs.", hint="Name the root that the training writes to, or set UNBROKEN_ROOT."
        )
    return Listing(root, tuple(_listing(run) for run in found))


def _listing(run: str) -> RunListing:
    try:
        repository = open_run(run)
        found = checkpoints(repository)
        return RunListing(run, found, unreadable=tuple(fault.problem for fault in repository.broken()))
    except (UnbrokenError, OSError) as error:  # one bad run does not hide the others
        return RunListing(run, (), str(error))


def checkpoints(repository: Repository) -> tuple[Listed, ...]:
    """Return what a run holds. Where its training deletes some meanwhile, the list is made anew."""
    for _ in range(ATTEMPTS - 1):
        found = _listed(repository)
        if not any(listed.problem and repository.gone(listed.commit) for listed in found):
            return found
    return tuple(one for one in _listed(repository) if not one.problem or not repository.gone(one.commit))


def _listed(repository: Repository) -> tuple[Listed, ...]:
    commits = repository.commits()
    return listed(repository, commits, among=commits)


def listed(repository: Repository, some: Iterable[Commit], *, among: Sequence[Commit]) -> tuple[Listed, ...]:
    """Return what is known of some commits `among` all that count, newest first. Only what is asked for is read."""
    left, again = abandoned(among), saved_again(among)
    apart = known_aside(repository.store)
    return tuple(
        _one(
            repository,
            c,
            abandoned=c.sequence in left,
            saved_again=c.sequence in again,
            apart=c.sequence in apart,
        )
        for c in some
    )


def _one(
    repository: Repository, commit: Commit, *, abandoned: bool, saved_again: bool, apart: bool
) -> Listed:
    # One for all of it: manifest and metadata are read once. No blob is, so the index need know none.
    reader = Reader(repository.store, BlobIndex(repository.store), commit)
    problem = _problem(reader, commit)
    try:
        found = reader.meta.fidelity
    except (CorruptObject, UnsupportedFormat):
        found = {}  # said as its problem
    inexact = {
        name: one.fidelity.value for name, one in sorted(found.items()) if one.fidelity is not Fidelity.EXACT
    }
    return Listed(commit, problem, abandoned, saved_again, inexact, len(found), apart)


def _problem(reader: Reader, commit: Commit) -> str:
    try:
        _ = reader.meta
        for entry in reader.manifest.documents.values():
            reader.document(entry.component)
    except (CorruptObject, UnsupportedFormat) as error:
        return f"damaged: {error.message}"
    return "" if commit.good else "weights not finite"
