"""Where runs live: a directory, or a place in a bucket. Made from what a person gives.

A person gives a path or a URL (`s3://bucket/prefix`, `gs://…`, `az://…`, `file:///…`); whoever works with
runs gets a `Root` and asks it for a run's store. Two checks: of the words, which touches nothing, and
of what stands there.

Not promised: that one can write there; the store finds that out.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote, urlsplit

from unbroken.errors import ConfigError, StoreError, installing, shown
from unbroken.format import layout
from unbroken.format.digest import digest_of
from unbroken.repo import names
from unbroken.repo.modes import modes
from unbroken.store.base import ByteStore, check_prefix, children, exists
from unbroken.store.hinted import HintedStore
from unbroken.store.local import LocalStore

LONGEST = 255
"""Bytes in one part of a path, on every file system in use."""

SCHEMES: Final = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl"})
STATE_VARIABLE: Final = "UNBROKEN_STATE_DIR"
HINTS: Final = frozenset({layout.PENDING})
"""What is written before `save()` returns, and so never over a network."""


class Root(ABC):
    """A place that holds runs, each under its name."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The place as a person writes it: an absolute path, or a URL."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of the place's name."""

    @abstractmethod
    def store(self, job: str) -> ByteStore:
        """Return the store of the run `job`, rooted at the run. Nothing is created.

        Raises:
            ConfigError: something else than a root is there, or it cannot be opened.
        """

    @abstractmethod
    def jobs(self) -> list[str]:
        """Return the names of the runs, sorted; none where nothing is there."""

    @abstractmethod
    def check_new(self, job: str) -> None:
        """Raise ConfigError where a run that is not there yet would come to lie inside of another run."""

    def run(self, job: str) -> str:
        """Return where the run `job` lies, as a person writes it."""
        return f"{self.text.rstrip('/')}/{job}"


@dataclass(frozen=True, slots=True)
class DirectoryRoot(Root):
    """A directory of this machine, or of a network file system."""

    path: Path

    @property
    def text(self) -> str:
        """The absolute path."""
        return str(self.path)

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    def check_new(self, job: str) -> None:
        """Raise ConfigError where a run that is not there yet would come to lie inside of another run: whoever deletes
        or copies that one would take this one for a part of it."""
        if os.path.lexists(self.path / job / layout.FORMAT):
            return
        here = Path(os.path.realpath(self.path))
        for folder in (here, *here.parents):
            if os.path.isfile(folder / layout.FORMAT) and os.path.isdir(folder / layout.EPOCHS):
                raise ConfigError(
                    f"{self.run(job)} would lie inside of the run {folder}.",
                    hint=f"Give {folder.parent} or another directory as root.",
                )

    def store(self, job: str) -> LocalStore:
        """Return the store in the run's directory."""
        return _local(_checked(self.path) / job)

    def jobs(self) -> list[str]:
        """Return the names of the directories that hold runs, sorted."""
        if not _checked(self.path).is_dir():
            return []
        return sorted(
            entry.name
            for entry in self.path.iterdir()
            if names.is_job(entry.name) and (entry / layout.FORMAT).is_file()
        )


@dataclass(frozen=True, slots=True)
class BucketRoot(Root):
    """A prefix in a bucket of an object store."""

    url: str

    @property
    def text(self) -> str:
        """The URL, without a slash at its end."""
        return self.url

    @property
    def name(self) -> str:
        """The last part of the prefix; the bucket's name where there is none."""
        return unquote(self.url.rpartition("/")[2])

    def check_new(self, job: str) -> None:
        """Look at nothing: it would be a request for every part of the prefix, at every start."""

    def store(self, job: str) -> HintedStore:
        """Return the store below the run's prefix; its hints lie on this machine."""
        here = state_directory() / f"{job}-{digest_of(self.run(job).encode())[-16:]}"
        return HintedStore(_bucket(self.url, below=job), _local(here), HINTS)

    def jobs(self) -> list[str]:
        """Return the names below the prefix that hold runs, sorted."""
        store = _bucket(self.url)
        return [
            name
            for name in children(store)
            if names.is_job(name) and exists(store, f"{name}/{layout.FORMAT}")
        ]


def _local(path: Path) -> LocalStore:
    wanted = modes()
    return LocalStore(path, file_mode=wanted.file, dir_mode=wanted.directory)


def root_of(root: object, *, name: str = "root") -> Root:
    """Return the root that a path (`~` resolved) or URL means. `name` is what the caller calls it.

    Raises:
        ConfigError: it can be none.
    """
    given = root
    if not isinstance(root, (str, os.PathLike)) or not os.fspath(root):
        raise ConfigError(
            f"{name} must be a directory or a URL, not {shown(given)}.",
            hint=f'For example {name}="runs/dqn" or {name}="s3://bucket/dqn".',
        )
    text: object = os.fspath(cast("str | os.PathLike[str]", root))
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(
            f"{name} must be a path in characters, not {shown(text)}.", hint="Give a directory."
        )
    if not is_url(text):
        return DirectoryRoot(_absolute(text, name=name))
    if text.startswith("file:///"):
        return DirectoryRoot(_absolute(unquote(text.removeprefix("file://")), name=name))
    return BucketRoot(_usable_url(text, name=name))


def check_apart(root: object, mirror: object, job: str) -> None:
    """Raise ConfigError where a run and its mirror would be the same place, or one inside the other."""
    one, other = root_of(root), root_of(mirror, name="mirror")
    inside = one.run(job) == other.run(job)
    if isinstance(one, DirectoryRoot) and isinstance(other, DirectoryRoot):
        here, there = Path(one.run(job)).resolve(), Path(other.run(job)).resolve()
        inside = here == there or here in there.parents or there in here.parents
    if inside:
        raise ConfigError(
            f"The mirror {other.run(job)} lies where the run itself does.",
            hint="Give a directory on another disk, or a bucket.",
        )


def is_url(text: str) -> bool:
    """Whether a person means a URL by this, and no path."""
    return "://" in text


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of this user on this machine for what is not worth a network."""
    own = environ.get(STATE_VARIABLE)
    if own:
        return Path(own).expanduser()
    home = environ.get("HOME") or "~"
    base = environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    return Path(base).expanduser() / "unbroken"


def _absolute(text: str, *, name: str) -> Path:
    try:
        path = Path(os.path.abspath(Path(text).expanduser()))
    except RuntimeError:
        raise ConfigError(
            f"{name}={shown(text)} names the home of a user who is not known here.",
            hint="Write the path out.",
        ) from None
    longest = max(path.parts, key=lambda part: len(os.fsencode(part)))
    if len(os.fsencode(longest)) > LONGEST:
        raise ConfigError(
            f"{name} has a part of {len(os.fsencode(longest))} bytes, {longest[:20]!r}…; the most is {LONGEST}.",
            hint="Give a shorter name.",
        )
    return path


def _usable_url(text: str, *, name: str) -> str:
    """Return the URL without a slash at its end. A part that may be a secret is not repeated in an error."""
    example = f'For example {name}="s3://bucket/prefix", "gs://…" or "az://container/…".'
    try:
        url = urlsplit(text)
    except ValueError:
        raise ConfigError(f"{name} is no URL that can be read.", hint=example) from None
    if url.scheme not in SCHEMES:
        raise ConfigError(f"{name} names {url.scheme[:20]}://, which is no object store.", hint=example)
    if ":" in url.netloc or url.query or url.fragment or ("@" in url.netloc and "abfs" not in url.scheme):
        raise ConfigError(
            f"{name} holds more than a bucket and a prefix.",
            hint="Credentials and endpoints go into the environment: AWS_*, AZURE_*, GOOGLE_*.",
        )
    if not url.netloc:
        raise ConfigError(f"{name} names no bucket.", hint=example)
    prefix = url.path.strip("/")
    try:
        check_prefix(unquote(prefix))
    except StoreError as error:
        raise ConfigError(f"{name} cannot be used: {error.message}", hint=example) from None
    return f"{url.scheme}://{url.netloc}/{prefix}".rstrip("/")


def _bucket(url: str, *, below: str = "") -> ByteStore:
    try:
        from unbroken.store.object import ObjectStore
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise ConfigError(
            f"{url} needs obstore, which is not installed.",
            hint=installing("obstore"),
        ) from None
    return ObjectStore(url, below=below)


def _checked(path: Path) -> Path:
    """Return `path` if a directory stands there, or nothing yet."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be used: {error.strerror}.", hint="Choose another directory."
        ) from error
    if not path.is_dir():
        raise ConfigError(f"{path} is a file, not a directory.", hint="Choose another directory.")
    return path
