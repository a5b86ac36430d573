"""The commits of a run, as any reader sees them.

A commit exists if its record does, can be read, and was not made inert by a later epoch. Records that
cannot be read are reported, never dropped in silence, and take no other commit with them.

Not promised: that the objects of a commit are undamaged.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import Commit
from unbroken.repo import fencing
from unbroken.repo.fault import ObjectFault
from unbroken.repo.seal import unseal
from unbroken.store.base import ByteStore, exists, taken
from unbroken.types import Epoch, Sequence

AROUND = 8
"""Numbers on each side of the low-water mark that are asked for by name where a listing lags behind."""
LISTINGS = 5
"""So often the records are listed where all of them are collected before one can be read."""


@dataclass(frozen=True, slots=True)
class CommitLog:
    """Commits that count and commits that are inert, newest first, and records that cannot be read."""

    commits: tuple[Commit, ...]
    stale: tuple[Commit, ...]
    broken: tuple[ObjectFault, ...]

    @property
    def last(self) -> Sequence:
        """The highest number of a commit that counts, or that cannot be read and might; 0 if there is none."""
        unknown = [layout.commit_sequence(fault.key) or 0 for fault in self.broken]
        return Sequence(max([*(commit.sequence for commit in self.commits), *unknown], default=0))


def read_log(store: ByteStore, *, starts: dict[Epoch, Sequence] | None = None) -> CommitLog:
    """Read all commit records, then the epochs: the other order could miss a start (see `fencing`).

    `starts` holds start records between calls: they never change.
    """
    found: list[Commit] = []
    broken: list[ObjectFault] = []
    for _ in range(LISTINGS):
        keys = _records(store)
        for key in keys:
            try:
                found.append(read_commit(store, key))
            except ObjectMissing:
                continue  # collected between the listing and now
            except (CorruptObject, UnsupportedFormat) as error:
                broken.append(ObjectFault("", key, "", error.message))
        if found or broken or not keys:
            break
        # Every one that was listed is gone, and there are newer ones: that run is not empty.
    epochs = fencing.read_epochs(store, known=starts)
    hidden = {commit.sequence for commit in found if epochs.hidden_by(commit, found) is not None}
    found.sort(key=lambda commit: commit.sequence, reverse=True)
    return CommitLog(
        commits=tuple(commit for commit in found if commit.sequence not in hidden),
        stale=tuple(commit for commit in found if commit.sequence in hidden),
        broken=(*broken, *epochs.damaged.values()),
    )


def is_gone(store: ByteStore, commit: Commit, *, starts: dict[Epoch, Sequence] | None = None) -> bool:
    """Whether a commit that was listed counts no more: it was deleted since, or a later epoch goes on before it.

    One whose record stands there and cannot be read is damaged, not gone.
    """
    log, key = read_log(store, starts=starts), layout.commit(commit.sequence)
    # By name, not by value: a metric may be NaN, which equals nothing.
    counts = any((c.sequence, c.write_id) == (commit.sequence, commit.write_id) for c in log.commits)
    return not counts and all(fault.key != key for fault in log.broken)


def _records(store: ByteStore) -> list[str]:
    """Return the keys of the commit records. A listing may lag behind; what comes next is asked for by name.

    So is what lies around the low-water mark, if the listing ends below it: one that is older than a
    retention shows none of the commits that the retention has kept.
    """
    keys = [key for key in taken(store, layout.COMMITS) if layout.commit_sequence(key) is not None]
    highest = max((layout.commit_sequence(key) or 0 for key in keys), default=0)
    mark = _low_water(store)
    if mark > highest + 1:
        around = range(max(highest + 1, mark - AROUND), mark + AROUND)
        there = [number for number in around if exists(store, layout.commit(Sequence(number)))]
        keys += [layout.commit(Sequence(number)) for number in there]
        highest = max(there, default=highest)
    following = Sequence(highest + 1)
    while exists(store, layout.commit(following)):
        keys.append(layout.commit(following))
        following = Sequence(following + 1)
    return keys


def _low_water(store: ByteStore) -> Sequence:
    try:
        return fencing.low_water(store)
    except UnsupportedFormat:
        return Sequence(1)  # it only helps to look; what else cannot be read will be told


def read_commit(store: ByteStore, key: str) -> Commit:
    """Return the commit record at `key`.

    Raises:
        ObjectMissing: there is none.
        CorruptObject: it is damaged, or speaks of another commit or directory than its own.
    """
    commit = unseal(store.get(key), Commit, key=key)
    if layout.commit(commit.sequence) != key:
        raise CorruptObject(f"{key} speaks of commit {commit.sequence}.", key=key)
    if commit.directory != layout.checkpoint(commit.step, commit.write_id):
        raise CorruptObject(f"{key} names the directory of another checkpoint.", key=key)
    return commit
