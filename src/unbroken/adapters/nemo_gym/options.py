"""What a checkpointed server is told: by whoever wraps its class, and by the environment of its process.

The wrapping happens where a module is loaded, the resolution where a server is built: only there is its name known.
Nothing is created here; whoever opens the log makes the directory.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote

from unbroken.adapters.nemo_gym import keys, words
from unbroken.adapters.nemo_gym.control import Capability
from unbroken.errors import ConfigError

Start: TypeAlias = Literal["open", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Resolved for one server."""

    directory: Path
    """Where its log and its media lie. Nothing else lies in it."""
    capability: Capability | None = None
    """None: what the classification of its attributes says."""
    exclude: tuple[str, ...] = ()
    """Attributes that are no state."""
    log_states: bool = False
    """Write the state of a session after every call, not only after its seeding and its verification."""
    retire_after_verify: bool = False
    """Free a session's memory once its verification is answered."""
    start: Start = "open"
    """Whether it opens by itself once it is restored, or waits for a trainer."""
    patience: float = 600.0
    """Seconds for which an agent tries to reach a server before it says that its rollout has to wait."""
    key: bytes = field(repr=False)
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was said where the class was wrapped."""

    directory: Path | str | None = None
    capability: Capability | None = None
    exclude: Collection[str] = ()
    log_states: bool = False
    retire_after_verify: bool = False

    def check(self) -> None:
        """Refuse what no server could use.

        Raises:
            ConfigError: an argument is not of its kind.
        """
        if isinstance(self.exclude, str):
            raise ConfigError(
                f"exclude={self.exclude!r} is a text.", hint=f"Give a list of attributes: [{self.exclude!r}]."
            )
        if self.capability is not None and self.capability not in get_args(Capability):
            raise ConfigError(
                f"capability={self.capability!r} is unknown.",
                hint=f"Use one of {', '.join(get_args(Capability))}, or None to have it found.",
            )


def resolve(wishes: Wishes, *, name: str, environment: Mapping[str, str] | None = None) -> Options:
    """Return the options of the server called `name`.

    Args:
        wishes: what was said where the class was wrapped.
        name: the instance name of the server.
        environment: of the process; that of this one, if None.

    Raises:
        ConfigError: something cannot be used, or no directory is given.
    """
    variables = os.environ if environment is None else environment
    wishes.check()
    return Options(
        directory=_directory(wishes.directory, name, variables),
        capability=wishes.capability,
        exclude=tuple(sorted(wishes.exclude)),
        log_states=wishes.log_states,
        retire_after_verify=wishes.retire_after_verify,
        start=_start(variables),
        patience=_patience(variables),
        key=keys.log_key(),
        token=keys.control_token(),
    )


def _directory(given: Path | str | None, name: str, variables: Mapping[str, str]) -> Path:
    if given is not None and str(given):
        return Path(given).expanduser().absolute()
    root = variables.get(words.DIRECTORY, "")
    if not root:
        raise ConfigError(
            f"The server {name!r} has no place for its log.",
            hint=f"Set {words.DIRECTORY} to a directory on a local disk that survives a restart, or give `directory`.",
        )
    if not name:
        raise ConfigError(
            f"{words.DIRECTORY} is set, but this server has no instance name to have a directory of.",
            hint="Give it a `name` in its configuration, or give `directory`.",
        )
    part = quote(name, safe=" ")  # a name with a slash must not leave the root
    return Path(root).expanduser().absolute() / (part if part.strip(".") else part.replace(".", "%2E"))


def _patience(variables: Mapping[str, str]) -> float:
    given = variables.get(words.PATIENCE, "") or "600"
    try:
        patience = float(given)
    except ValueError:
        patience = -1.0
    if not 0 < patience < float("inf"):
        raise ConfigError(
            f"{words.PATIENCE}={given!r} is no number of seconds above 0.",
            hint="Leave it out for 600 seconds, or set the seconds to wait for a server.",
        )
    return patience


def _start(variables: Mapping[str, str]) -> Start:
    given = variables.get(words.START, "") or "open"
    if given == "open":
        return "open"
    if given == "closed":
        return "closed"
    raise ConfigError(f"{words.START}={given!r} is neither `open` nor `closed`.", hint="Set one of the two.")
