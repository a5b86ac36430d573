"""The keys that sign checkpoints with pickled parts.

The key in use comes from `UNBROKEN_KEY`, else from a file in the user's configuration directory, which is
created on first use with mode 0600. Whoever has the key can make a checkpoint that runs code when it is
loaded, so a key file that others can read, or that belongs to another user, is refused.

A key that was replaced is retired: it signs nothing any more, and what it has signed is still ours.

Not promised: secrecy of the state. Signing does not encrypt.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import ConfigError
from unbroken.format.signature import key_name

VARIABLE = "UNBROKEN_KEY"
KEY_BYTES = 32
_LEAST = 16
_MOST = 4096
_HEX = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key that this user holds, and where. `retired`: it signs nothing any more."""

    key: bytes
    where: str
    retired: bool = False

    @property
    def name(self) -> str:
        """Its public name, which stands in signatures, and from which the key cannot be found."""
        return key_name(self.key)

    def __repr__(self) -> str:  # a key does not belong into a log
        return f"HeldKey({self.name}, {self.where!r})"


def key_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the key lies if no variable gives it."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "~", ".config")
    return Path(base).expanduser() / "unbroken" / "key"


def signing_key(*, create: bool, environ: Mapping[str, str] | None = None) -> bytes | None:
    """Return the key in use, or None if there is none and `create` is False.

    Raises:
        ConfigError: the variable is too short, or the file is unreadable, damaged or open to others.
    """
    held = key_in_use(create=create, environ=environ)
    return None if held is None else held.key


def key_in_use(*, create: bool, environ: Mapping[str, str] | None = None) -> HeldKey | None:
    """Return the key in use and where it comes from; errors as `signing_key`."""
    environ = os.environ if environ is None else environ
    given = environ.get(VARIABLE)
    if given is not None:
        if len(os.fsencode(given)) < _LEAST:
            raise ConfigError(
                f"{VARIABLE} is shorter than {_LEAST} characters.",
                hint="Make one with: python -c 'import secrets; print(secrets.token_hex(32))'",
            )
        # So a key that was made in a file is the same key in the variable.
        return HeldKey(bytes.fromhex(given) if _HEX.match(given) else os.fsencode(given), VARIABLE)
    path = key_file(environ)
    with _told(path):
        key = _read(path)
        key = _create(path) if key is None and create else key
    return None if key is None else HeldKey(key, str(path))


def held_keys(environ: Mapping[str, str] | None = None) -> Iterator[HeldKey]:
    """Yield the key in use, if there is one, and then those that were retired, sorted by name.

    Raises:
        ConfigError: one that comes next cannot be used.
    """
    held = key_in_use(create=False, environ=environ)
    if held is not None:
        yield held
    folder = _retired(environ)
    with _told(folder):
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
    for name in filter(_NAME.match, names):
        with _told(folder / name):
            key = _read(folder / name)
        if key is not None and (held is None or key != held.key):
            yield HeldKey(key, str(folder / name), retired=True)


def make(environ: Mapping[str, str] | None = None) -> HeldKey:
    """Make the key in its file.

    Raises:
        ConfigError: there is one already, or it cannot be written.
    """
    held = key_in_use(create=False, environ=environ)
    if held is not None:
        raise ConfigError(
            f"There is a key already: {held.name}, from {held.where}.",
            hint="Replace it with: unbroken key rotate"
            if held.where != VARIABLE
            else f"Unset {VARIABLE} first.",
        )
    made = key_in_use(create=True, environ=environ)
    assert made is not None
    return made


def rotate(environ: Mapping[str, str] | None = None) -> tuple[HeldKey, HeldKey]:
    """Put a new key in the place of the one in the file; return the new one and the retired one.

    The former key is durable under its name before the new one takes its place.

    Raises:
        ConfigError: the variable decides, there is no key yet, or it cannot be written.
    """
    held = key_in_use(create=False, environ=environ)
    path, folder = key_file(environ), _retired(environ)
    if held is None:
        raise ConfigError("There is no key yet.", hint="Make one with: unbroken key make")
    if held.where == VARIABLE:
        raise ConfigError(
            f"{VARIABLE} gives the key, and not a file.", hint=f"Give {VARIABLE} another value, or unset it."
        )
    with _told(path), _alone(path.parent):
        old = _read(path) or held.key
        folder.mkdir(mode=0o700, exist_ok=True)
        _written(folder / key_name(old), old)
        new = secrets.token_bytes(KEY_BYTES)
        _written(path, new)
    retired = HeldKey(old, str(folder / key_name(old)), retired=True)
    return HeldKey(new, str(path)), retired


def forget(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """Delete a retired key; what it has signed is nobody's from now on. Return its file.

    Raises:
        ConfigError: no key of this name is retired.
    """
    path = _retired(environ) / name
    if not _NAME.match(name) or not path.is_file():
        raise ConfigError(f"No key {name!r} is retired.", hint="See which there are with: unbroken key")
    with _told(path):
        path.unlink()
    return path


def _retired(environ: Mapping[str, str] | None) -> Path:
    return key_file(environ).parent / "retired"


@contextmanager
def _told(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"The signing key {path} cannot be used: {error.strerror or error}.",
            hint=f"Set {VARIABLE} instead, or make the file readable for this user.",
        ) from error


@contextmanager
def _alone(folder: Path) -> Generator[None, None, None]:
    """Let one process at a time replace the key: of two, one would lose what it has just made."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes | None:
    try:
        # Without O_NONBLOCK a FIFO in its place would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"The signing key {path} can be read by others.", hint=f"Run: chmod 600 {path}")
        if found.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"The signing key {path} belongs to another user, who can change it.",
                hint="Give this user a key of its own: delete the file, and run: unbroken key make",
            )
        text = file.read(_MOST) if stat.S_ISREG(found.st_mode) else b""
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"The signing key {path} is damaged.",
            hint="Delete it: a new one is made, and checkpoints signed with the old one need trust=True.",
        )
    return key


def _create(path: Path) -> bytes | None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = secrets.token_bytes(KEY_BYTES)
    temporary = _draft(path, key)
    try:
        # A link and not a rename: of two processes that start together the first one's key stays.
        os.link(temporary, path)
    except FileExistsError:
        return _read(path)
    finally:
        temporary.unlink()
    return key


def _written(path: Path, key: bytes) -> None:
    """Write a key in place of what is there, durably."""
    os.replace(_draft(path, key), path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft(path: Path, key: bytes) -> Path:
    temporary = path.with_name(f".key-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask is
        file.write(key.hex().encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    return temporary
