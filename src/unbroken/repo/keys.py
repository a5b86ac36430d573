"""The key that signs checkpoints with pickled parts.

It comes from `UNBROKEN_KEY`, else from a file in the user's configuration directory, which is created
on first use with mode 0600. Whoever has the key can make a checkpoint that runs code when it is
loaded, so a key file that others can read is refused.

Not promised: secrecy of the state. Signing does not encrypt.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from unbroken.errors import ConfigError

VARIABLE = "UNBROKEN_KEY"
KEY_BYTES = 32
_LEAST = 16


def key_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the key lies if no variable gives it."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "~", ".config")
    return Path(base).expanduser() / "unbroken" / "key"


def signing_key(*, create: bool, environ: Mapping[str, str] | None = None) -> bytes | None:
    """Return the key, or None if there is none and `create` is False.

    Raises:
        ConfigError: the variable is too short, or the file is unreadable, damaged or open to others.
    """
    environ = os.environ if environ is None else environ
    given = environ.get(VARIABLE)
    if given is not None:
        if len(given.encode()) < _LEAST:
            raise ConfigError(
                f"{VARIABLE} is shorter than {_LEAST} characters.",
                hint="Make one with: python -c 'import secrets; print(secrets.token_hex(32))'",
            )
        return given.encode()
    path = key_file(environ)
    try:
        key = _read(path)
        return _create(path) if key is None and create else key
    except OSError as error:
        raise ConfigError(
            f"The signing key {path} cannot be used: {error.strerror or error}.",
            hint=f"Set {VARIABLE} instead, or make the file readable for this user.",
        ) from error


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"The signing key {path} can be read by others.", hint=f"Run: chmod 600 {path}")
        text = file.read()
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
    temporary = path.with_name(f".key-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(key.hex().encode("ascii"))
            file.flush()
            os.fsync(descriptor)
        try:
            # A link and not a rename: of two processes that start together the first one's key stays.
            os.link(temporary, path)
        except FileExistsError:
            return _read(path)
    finally:
        temporary.unlink()
    return key
