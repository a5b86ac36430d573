"""What a person means by a path or a URL on the command line: a root, a run, or one checkpoint of a run.

`PATH` is a run's directory, a root that holds a single run, or the directory of one step;
`PATH@STEP` and `PATH@latest` name a checkpoint of a run. A URL of a bucket may stand for each path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from unbroken.engine.configuration.sources import root_said
from unbroken.errors import ConfigError, CorruptObject, ObjectMissing, RunBusy
from unbroken.format.layout import FORMAT, STEPS
from unbroken.format.records import Commit
from unbroken.inspection import bucket
from unbroken.repo.repository import Repository
from unbroken.repo.roots import is_url
from unbroken.repo.settled import ATTEMPTS

T = TypeVar("T")

DEPTH = 4
"""So many levels down a directory is searched for runs."""
MOST = 10_000
"""So many directories are looked into; who names `/` has not named a root."""
NO_FILES = frozenset(map(Path, ("/proc", "/sys", "/dev")))
"""File systems of the kernel."""
NEXT = "See what is there with: unbroken ls"


def default_root() -> str:
    """Return where runs lie if a command is not told: where the environment or the configuration file says, or here.

    Raises:
        ConfigError: the configuration file cannot be read.
    """
    said = root_said(os.environ)
    return "." if said is None else str(said.value)


@dataclass(frozen=True, slots=True)
class Target:
    """A run and, where one was named, a checkpoint of it. `where` is the run's path or URL."""

    repository: Repository
    where: str
    commit: Commit | None = None

    def place(self, commit: Commit) -> str:
        """Return where a checkpoint lies."""
        return f"{self.where}/{commit.directory}"

    def checkpoint(self) -> Commit:
        """Return the named checkpoint, or the newest one.

        Raises:
            ConfigError: the run holds none.
        """
        if self.commit is not None:
            return self.commit
        commits = self.repository.commits()
        if not commits:
            raise ConfigError(f"{self.where} holds no checkpoint yet.", hint="Train until the first save.")
        return commits[0]

    def read(self, do: Callable[[Commit], T]) -> T:
        """Do something with the named checkpoint, or with the newest one.

        The run may be in training: where that deletes the newest meanwhile, the next newest takes its place.

        Raises:
            ConfigError: the run holds none, or the named one was deleted meanwhile.
            CorruptObject: it is damaged; the hint names one to try instead.
            RunBusy: each newest one is deleted before it is read.
        """
        for _ in range(ATTEMPTS):
            commit = self.checkpoint()
            try:
                with self._told(commit):
                    return do(commit)
            except (CorruptObject, ObjectMissing):
                if not self.repository.gone(commit):
                    raise
                if self.commit is not None:
                    raise ConfigError(
                        f"The checkpoint of step {commit.step} was deleted while it was read: "
                        "the run keeps only some.",
                        hint=f"{NEXT} {self.where}",
                    ) from None
        raise RunBusy(
            f"{self.where} deletes its checkpoints before they can be read.",
            hint="Let it keep more of them (keep_last), or read it when it has ended.",
        )

    @contextmanager
    def _told(self, commit: Commit) -> Generator[None, None, None]:
        """Add to an error of a damaged checkpoint what to do now."""
        try:
            yield
        except CorruptObject as error:
            older = next((c for c in self.repository.commits() if c.sequence < commit.sequence), None)
            instead = "" if older is None else f"The one before may be whole: {self.where}@{older.step}. "
            raise CorruptObject(
                f"The checkpoint of step {commit.step} cannot be read: {error.message}",
                hint=f"{instead}Which are whole says: unbroken verify {self.where}",
                key=error.key,
                digest=error.digest,
            ) from error


def run_of(text: str, *, step: int | None = None) -> Target:
    """Return the run that `text` names, at `step` if one is given.

    Raises:
        ConfigError: nothing is there, or it is not clear which run or checkpoint is meant.
    """
    path, at = split(text)
    if at and step is not None:
        raise ConfigError(f"{text} names a step, and so does --step {step}.", hint="Give one of them.")
    run, directory = bucket.step_in(path) if is_url(path) else _step_directory(Path(path))
    if directory:
        repository = open_run(run)
        for commit in repository.commits():
            if commit.directory.rstrip("/") == directory:
                return Target(repository, run, commit)
        raise ConfigError(f"{path} is not a committed checkpoint.", hint=f"{NEXT} {run}")
    run = bucket.find_run(path) if is_url(path) else str(find_run(Path(path)))
    repository = open_run(run)
    if step is not None:
        at = str(step)
    return Target(repository, run, at_step(repository, run, at) if at and at != "latest" else None)


def split(text: str) -> tuple[str, str]:
    """Split `PATH@STEP`. A path that exists is taken as it is, even with an `@` in it."""
    path, found, at = text.rpartition("@")
    if not found or (os.path.exists(text) if not is_url(text) else "/" in at):  # abfss://container@account…
        return text, ""
    return path, at


def runs_in(text: str) -> list[str]:
    """Return the path or URL of each run that this is or holds, sorted; see `runs_below` and `bucket.runs_at`."""
    if is_url(text):
        return bucket.runs_at(text)
    path = Path(text)
    return [str(run) for run in (runs_below(path) if path.is_dir() else [find_run(path)])]


def run_named(text: str, job: str) -> str:
    """Return the path or URL of the run `job` that `text` is or holds; without a name of its only run.

    Raises:
        ConfigError: there is none, or several.
    """
    if not job:
        return bucket.find_run(text) if is_url(text) else str(find_run(Path(text)))
    found = [run for run in runs_in(text) if run.rpartition("/")[2] == job]
    if len(found) != 1:
        several = f"{len(found)} runs" if found else "no run"
        raise ConfigError(f"{text} holds {several} of the name {job!r}.", hint=f"{NEXT} {text}")
    return found[0]


def find_run(path: Path) -> Path:
    """Return the directory of the run that `path` is, or of the only run in it."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist.", hint="Give a run's directory, or a root that holds one.")
    if not path.is_dir():
        raise ConfigError(f"{path} is a file, not a run.", hint="Give the directory that holds format.json.")
    if (path / FORMAT).is_file():
        return path
    found = runs_below(path)
    if not found:
        raise ConfigError(f"{path} holds no run.", hint="A run's directory holds a file format.json.")
    if len(found) > 1:
        listed = ", ".join(str(run.relative_to(path)) for run in found[:10]) + (
            ", …" if len(found) > 10 else ""
        )
        raise ConfigError(f"{path} holds {len(found)} runs: {listed}.", hint=f"Name one: {found[0]}")
    return found[0]


def runs_below(path: Path, *, depth: int = DEPTH) -> list[Path]:
    """Return the directories of all runs under `path`, sorted; a run is not searched for others.

    A script's root often lies below the directory that a person thinks of (`runs/dqn` in `runs`), so
    the search goes some levels down. What may not be read is passed over.

    Raises:
        ConfigError: there are too many directories to look into.
    """
    found: list[Path] = []
    level = [path]
    seen = 0
    for _ in range(depth + 1):
        below: list[Path] = []
        for directory in level:
            seen += 1
            if seen > MOST:
                raise ConfigError(
                    f"{path} holds more than {MOST:,} directories.", hint="Name one nearer to the runs."
                )
            if os.access(directory / FORMAT, os.F_OK):  # False, not an error, where we may not look
                found.append(directory)
            else:
                below += _directories(directory)
        level = below
    return sorted(found)


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = [
                e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)
            ]
    except OSError:  # another user's, or gone meanwhile
        return []
    return [path / name for name in sorted(names) if path / name not in NO_FILES]


def at_step(repository: Repository, run: str, at: str) -> Commit:
    """Return the newest checkpoint at a step."""
    if not at.isdecimal():
        raise ConfigError(f"{at!r} is not a step.", hint=f"Write {run}@12000 or {run}@latest.")
    commits = repository.commits()
    for commit in commits:
        if commit.step == int(at):
            return commit
    steps = ", ".join(str(commit.step) for commit in commits[:10]) or "none"
    raise ConfigError(f"{run} holds no checkpoint of step {at}.", hint=f"It holds: {steps}.")


def _step_directory(path: Path) -> tuple[str, str]:
    """Return the run's directory and `steps/<name>` if `path` is the directory of a step, else nothing."""
    run = path.parent.parent
    inside = path.absolute().parent.name == STEPS and (path.absolute().parent.parent / FORMAT).is_file()
    return (str(run), f"{STEPS}/{path.absolute().name}") if inside else ("", "")


def open_run(run: str) -> Repository:
    """Open the run that lies at this path or URL."""
    if is_url(run):
        return bucket.open_run(run)
    path = Path(run).resolve()
    return Repository.open(path.parent, path.name)
