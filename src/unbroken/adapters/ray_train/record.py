"""What Ray Train knows of a run's checkpoints: pointers, which it keeps, hands out and deletes as it likes.

A pointer is a hint. From where a run goes on is what its own commits say: Ray's record is behind them by
whatever lay in a queue when a worker was killed, and a directory that lies in its storage says nothing of
what is in it.

Not promised: that a pointer that Ray has kept (`num_to_keep`, `best_checkpoints`) still leads to a
checkpoint. The end of a training always stays; of others the run keeps what `keep_last` and `best` say.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray.train

from unbroken.adapters.ray_train.world import has_storage
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.engine.world import World
from unbroken.errors import ConfigError, CorruptObject
from unbroken.format.pointer import FILE, Pointer
from unbroken.format.records import Commit
from unbroken.repo import pointers
from unbroken.repo.repository import Repository


def read_pointer(directory: str | os.PathLike[str]) -> Pointer:
    """Return the pointer in a directory that Ray Train gives back as a checkpoint.

    Raises:
        ConfigError: there is none: the checkpoint was written by something else.
        CorruptObject: it is damaged.
    """
    return pointers.required(
        directory, framework="Ray Train", hint="Load it by the code that has written it."
    )


@dataclass(frozen=True, slots=True)
class Given:
    """What Ray Train gives a worker that starts: a pointer, or the reason why there is none; else nothing."""

    pointer: Pointer | None = None
    trouble: str = ""


def given() -> Given:
    """Return what Ray Train gives this worker to go on from."""
    checkpoint: Any = ray.train.get_checkpoint()
    if checkpoint is None:
        return Given()
    try:
        with checkpoint.as_directory() as directory:
            found = pointers.read(directory)
    except (OSError, CorruptObject) as error:
        return Given(trouble=f"Ray Train's checkpoint cannot be read and is not used ({error})")
    if found is None:
        return Given(trouble=f"Ray Train's checkpoint holds no {FILE}: it was written by something else")
    return Given(found)


def check_same_run(found: Given, settings: Settings) -> None:
    """Refuse to begin anew where Ray Train says that the training has come far, in another run.

    Raises:
        ConfigError: the pointer is of another run, and this one holds nothing.
    """
    pointer = found.pointer
    if pointer is None or commits_of(settings):
        return
    raise ConfigError(
        f"Ray Train's record is at step {pointer.step:,} of the run {pointer.job!r} in {pointer.root}, and there"
        f" is no checkpoint in {settings.where}.",
        hint="Give the former root, or another name in RunConfig for a training from the start.",
    )


def asides(found: Given, report: ResumeReport, commits: Sequence[Commit]) -> tuple[str, ...]:
    """Return what a user of Ray Train has to be told of this start, as parts of its line."""
    pointer = found.pointer
    if found.trouble:
        return (found.trouble,)
    if not report.restored:
        return ()
    if pointer is None:
        return ("Ray Train's record knows no checkpoint",) if report.step > 0 else ()
    if not any(names(pointer, commit) for commit in commits):
        return (f"Ray Train's record names step {pointer.step:,}, which the run no longer holds",)
    if pointer.step != report.step:
        return (f"Ray Train's record is of step {pointer.step:,}",)
    return ()


def names(pointer: Pointer, commit: Commit) -> bool:
    """Whether a pointer is to this commit. The root does not count: a run may have been moved."""
    return (pointer.sequence, pointer.digest) == (commit.sequence, commit.manifest_digest)


def commits_of(settings: Settings) -> list[Commit]:
    """Return what the run holds, newest first; nothing where there is no run."""
    try:
        return Repository.open(settings.root, settings.job).commits()
    except ConfigError:
        return []


class RayRecord:
    """Ray Train's record of one run, as this process knows it. Rank 0 alone adds to it."""

    def __init__(self, settings: Settings) -> None:
        self.is_behind = False
        """Whether there may be a checkpoint that Ray has not been told of."""
        self._settings = settings
        self._told = 0
        """Number of the newest commit that Ray knows."""
        self._opened: Repository | None = None

    @property
    def _repository(self) -> Repository:
        if self._opened is None:
            self._opened = Repository.open(self._settings.root, self._settings.job)
        return self._opened

    def worker_status(self, report: ResumeReport) -> Sequence[Mapping[str, Any]]:
        """Return what every worker had said of itself by the checkpoint that came back."""
        return () if report.commit is None else self._repository.meta(report.commit).worker_status

    def begin(self, found: Given, report: ResumeReport) -> tuple[str, ...]:
        """Compare what Ray has given with where the run goes on; return what a person is to be told."""
        commits = self._repository.commits()
        newest = commits[0]
        self.is_behind = found.pointer is None or not names(found.pointer, newest)
        return asides(found, report, commits)

    def report(self, metrics: Mapping[str, Any], world: World, *, waiting: bool) -> None:
        """Report metrics, and by rank 0 a pointer if a checkpoint is new and not still being written."""
        commit = None if waiting or not world.is_coordinator else self._news()
        if commit is None:
            ray.train.report(dict(metrics))
            return
        with self._checkpoint(commit, world.size) as checkpoint:
            ray.train.report(dict(metrics), checkpoint=checkpoint)
        self._told = commit.sequence

    def _news(self) -> Commit | None:
        if not self.is_behind or not has_storage():
            return None
        self.is_behind = False
        newest = self._repository.commits()[0]
        return None if newest.sequence == self._told else newest

    @contextmanager
    def _checkpoint(self, commit: Commit, world_size: int) -> Generator[Any, None, None]:
        with tempfile.TemporaryDirectory(prefix="unbroken-") as directory:
            pointers.write(
                directory,
                commit,
                root=os.fspath(self._settings.root),
                job=self._settings.job,
                world_size=world_size,
            )
            yield ray.train.Checkpoint.from_directory(directory)
