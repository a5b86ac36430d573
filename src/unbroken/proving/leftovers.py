"""What a run leaves behind that nobody needs: on the disk, in memory without a process, as a process.

Of a process or a shared memory that the undisturbed run leaves likewise, the script itself is the cause, and not a
kill. Of what lies in the run's own directory nothing is excused.

Not promised: shared memory that a script made and left without being seen: it is looked for when the script is killed
and at its end, in the processes that are there at that moment. Files that a script writes elsewhere are its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from unbroken.errors import CorruptObject
from unbroken.repo.lock import read_lease
from unbroken.repo.process import named_in
from unbroken.repo.pruning import plan_prune
from unbroken.repo.repository import Repository, jobs
from unbroken.store.publish import TEMPORARY


def left_in(root: Path) -> tuple[str, ...]:
    """Return what lies in the runs of `root` that no checkpoint needs, or that speaks of a process that is over."""
    return tuple(f"{job}: {found}" for job in jobs(root) for found in _left_in_run(root, job))


def not_excused(found: Collection[str], undisturbed: Collection[str]) -> tuple[str, ...]:
    """Return what the killed run has left and the undisturbed one has not, sorted."""
    return tuple(sorted(set(found) - set(undisturbed)))


def _left_in_run(root: Path, job: str) -> Iterator[str]:
    place = root / job
    for path in sorted(place.rglob(f"{TEMPORARY}*")):
        yield f"temporary file {path.relative_to(place)}"
    repository = Repository.open(root, job)
    for key in plan_prune(repository.store, keep_last=None).collection.keys:
        yield f"object without a checkpoint {key}"
    try:
        pending = repository.pending()
    except CorruptObject as error:
        yield f"pending record that cannot be read ({error.message})"
    else:
        if pending is not None:
            yield f"pending record of step {pending.step}"
    lease = read_lease(repository.store)
    if lease is not None:
        yield f"lease of {named_in(lease)}"
