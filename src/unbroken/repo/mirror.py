"""A second place for the checkpoints of a run, with a retention of its own.

The mirror is a run like any other: it is read, listed and verified by the same means, and only one process
writes to it, under an epoch of its own. A checkpoint arrives there whole or not at all (`copying`).

Invariants: the first place is only read, but for one small record; a mirror that belongs to another run is
never written to; of what the mirror holds, the newest commit is the newest checkpoint that was copied; a run that
holds nothing has no mirror of its own yet: the name that binds the two is written with the first checkpoint.

Not promised: that the mirror has every checkpoint of the first place. It gets the newest at the time, the
newest good one, the best, and the end of each segment; the records of saves whose checkpoints it never had, now and then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from unbroken.errors import (
    ConfigError,
    CorruptObject,
    ObjectMissing,
    StoreFull,
    UnbrokenError,
    UnsupportedFormat,
    Untrusted,
)
from unbroken.format import layout
from unbroken.format.mirror import MIRROR, MirrorRecord
from unbroken.format.records import Commit
from unbroken.repo import aside, copying, names
from unbroken.repo.copying import Copied, facts
from unbroken.repo.repository import Repository
from unbroken.repo.retention import Best, plan_retention
from unbroken.repo.roots import DirectoryRoot, root_of
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.seal import seal, unseal
from unbroken.types import WriteId

OF_ONE = (CorruptObject, ObjectMissing, UnsupportedFormat, Untrusted)
"""What is wrong with one checkpoint, and says nothing of the others: they are copied."""


SAVES_EVERY = 16
"""Rounds of one process from one copy of the records of saves to the next."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A checkpoint that could not be copied: it is damaged where it lies, or our key may not vouch for it."""

    commit: Commit
    error: UnbrokenError


class Mirror:
    """The right to write the checkpoints of `source` into a mirror. A context manager; use `open`."""

    def __init__(self, source: Repository, target: Repository, writer: RunWriter, name: str) -> None:
        self._source = source
        self._target = target
        self._writer = writer
        self._name = name
        self._rounds = 0

    @classmethod
    def open(
        cls,
        root: str,
        source: Repository,
        *,
        token: Callable[[], str] = lambda: secrets.token_hex(names.TOKEN_DIGITS // 2),
    ) -> Mirror:
        """Take the mirror below `root` for this run. `source` is read by whoever uses the mirror, and by nobody else.

        Raises:
            ConfigError: it is the mirror of another run, or cannot be used.
            RunBusy: another live process writes to it.
            StoreError: it, or the first place, does not answer.
        """
        target = Repository.open(root, source.job, create=True)
        # Before an epoch is claimed there: it would take the mirror from the run that it belongs to.
        _common_name(source, target, root)
        writer = target.writer()
        try:
            name = _common_name(source, target, root) or token()  # another may have had it until now
            made = cls(source, target, writer, name)
            if _holds(source) or _holds(target):
                made._bind()
        except BaseException:
            writer.close()
            raise
        return made

    def update(self, *, keep_last: int, best: Best | None = None) -> Iterator[Copied | Lost]:
        """Copy what the mirror lacks, the newest last; then delete what it need not keep.

        Raises:
            StoreError: one of the places failed.
            Fenced: another process has taken the mirror over.
        """
        if self._rounds == 0:
            self._set_aside()
        wanted = chosen(self._source.commits(), best=best)
        if wanted:
            self._bind()
        have = {facts(commit) for commit in self._target.commits()}
        if wanted and facts(wanted[-1]) in have:
            # The newest must come last, so what is older is not copied after it; a damaged copy is mended.
            wanted = wanted[-1:]
        try:
            yield from self._copy(wanted)
        except StoreFull:
            # What the settings no longer keep is deleted after the copy, and would be in its way for ever.
            self._retain(keep_last, best)
            yield from self._copy(wanted)
        self._retain(keep_last, best)
        # Not at each round: there may be thousands of records, and whoever needs a mirror needs checkpoints.
        if wanted and (self._rounds % SAVES_EVERY == 0 or wanted[-1].position == "end"):
            copying.copy_saves(self._source, self._target, self._writer)
        self._rounds += 1

    def _copy(self, wanted: Iterable[Commit]) -> Iterator[Copied | Lost]:
        for commit in wanted:
            try:
                yield from copying.copy(self._source, [commit], self._target, self._writer)
            except OF_ONE as error:
                yield Lost(commit, error)

    def _retain(self, keep_last: int, best: Best | None) -> None:
        writer = self._writer.checkpoints
        self._writer.retain(
            plan_retention(
                writer.commits(),
                keep_last=keep_last,
                best=best,
                damaged=writer.aside(),
                pinned=writer.pinned(),
            )
        )

    def _bind(self) -> None:
        """Give both places the one name. Before anything is copied: else a kill would leave a mirror of nobody."""
        record = seal(MirrorRecord(id=WriteId(self._name)))
        for repository in (self._target, self._source):
            if _name_of(repository) != self._name:
                repository.store.put(MIRROR, record)

    def _set_aside(self) -> None:
        """Keep what the mirror has had when its run began anew: before anything of the new beginning is copied."""
        began = aside.moment(self._source.store)
        if began is not None and began != aside.moment(self._target.store):
            self._writer.set_aside(self._target.commits(), time=began)

    def close(self) -> None:
        """Give the mirror back."""
        self._writer.close()

    def __enter__(self) -> Mirror:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def chosen(commits: Sequence[Commit], *, best: Best | None = None) -> list[Commit]:
    """Return which of a run's commits belong into its mirror, the oldest first."""
    newest_first = sorted(commits, key=lambda commit: commit.sequence, reverse=True)
    found: dict[int, Commit] = {}

    def take(commit: Commit | None) -> None:
        if commit is not None:
            found[commit.sequence] = commit

    take(newest_first[0] if newest_first else None)
    take(next((commit for commit in newest_first if commit.good), None))
    take(None if best is None else best.choose(newest_first))
    for segment in {commit.segment for commit in newest_first}:
        ends = (c for c in newest_first if c.segment == segment and c.position == "end")
        take(next(ends, None))
    return [found[sequence] for sequence in sorted(found)]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a mirror holds, newest first. `problem` says why that cannot be told; empty if it can."""

    where: str
    commits: tuple[Commit, ...] = ()
    problem: str = ""
    missing: str = ""
    """Why there is no run: there is no such directory, or nothing in it; empty if there is one."""

    @property
    def nothing(self) -> str:
        """Return that it holds no checkpoint, and why; an empty string if it holds one, or that cannot be told."""
        if self.commits or self.problem:
            return ""
        return f"the mirror {self.where} holds no checkpoint" + (f": {self.missing}" if self.missing else "")


def contents(root: str, job: str) -> Contents:
    """Return what the mirror of a run holds. Writes nothing.

    Raises:
        StoreError: it does not answer.
    """
    place = root_of(root, name="mirror")
    if isinstance(place, DirectoryRoot) and not place.path.exists():
        return Contents(place.run(job), missing=f"there is no directory {place.path}")
    try:
        return Contents(place.run(job), tuple(Repository.open(root, job).commits()))
    except ConfigError:
        return Contents(place.run(job), missing=f"there is no run {job!r} in {place.text}")


def bring_back(
    root: str, target: Repository, writer: RunWriter, wanted: Iterable[Commit], *, unsigned: bool = False
) -> list[Copied | Lost]:
    """Copy checkpoints of a mirror into the first place of its run, in this order. `writer` is that of `target`;
    `unsigned` as for `copying.copy`.

    Raises:
        StoreError: one of the places failed.
    """
    commits, done = [*wanted], list[Copied | Lost]()
    if not commits:
        return done
    source = Repository.open(root, target.job)
    for commit in commits:
        try:
            done += copying.copy(source, [commit], target, writer, anew=True, unsigned=unsigned)
        except OF_ONE as error:
            done.append(Lost(commit, error))
    copying.copy_saves_or_warn(source, target, writer)
    return done


def is_foreign(root: str, job: str, commit: Commit) -> bool:
    """Whether a commit of a mirror holds pickled parts that are signed with another key than ours."""
    try:
        return copying.is_foreign(Repository.open(root, job), commit)
    except (CorruptObject, ObjectMissing, UnsupportedFormat):
        return False  # what is damaged is found when it is read


def _common_name(source: Repository, target: Repository, root: str) -> str:
    """Return the name that a run and its mirror have, empty if they have none yet.

    A name without a checkpoint binds nobody: a mirror that holds none takes the name of the run. A run that holds none
    takes the mirror from whoever had it, so it needs a new one: an empty name, too.

    Raises:
        ConfigError: the mirror is another run's.
    """
    here, there = _name_of(source), _name_of(target)
    if not (here and here == there):
        if not _holds(source):
            # Whoever takes over what the mirror holds takes the mirror. The run that it was the mirror of may be whole
            # somewhere: under another name it is refused there, and two runs never write into one mirror by turns.
            return "" if _holds(target) else there or here
        if not _holds(target):
            return here or there
        akin = bool({facts(c) for c in source.commits()} & {facts(c) for c in target.commits()})
        if (here and there) or not akin:
            raise ConfigError(
                f"The mirror {root_of(root).run(target.job)} belongs to another run of the name {target.job!r}.",
                hint="To go on from what the mirror holds, move this run away and start again; to keep this run, give"
                " it a mirror, or a name, of its own.",
            )
    return here or there


def _holds(repository: Repository) -> bool:
    """Whether a run has commits, readable or not."""
    return bool(repository.store.list(layout.COMMITS))


def _name_of(repository: Repository) -> str:
    try:
        return unseal(repository.store.get(MIRROR), MirrorRecord, key=MIRROR).id
    except (ObjectMissing, CorruptObject):
        return ""  # what both hold tells then whether they belong together
