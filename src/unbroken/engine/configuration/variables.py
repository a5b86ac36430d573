"""How each `UNBROKEN_*` variable is read.

Invariant: every setting has a reader; what it cannot read is a ConfigError that names the variable.

Not promised: that a value can be used. Settings check that themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unbroken.engine.configuration.names import elsewhere, is_demand, nearest
from unbroken.engine.configuration.words import NONE, PREFIX, RESUME_WORDS
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.schedule import Every
from unbroken.errors import ConfigError, shown
from unbroken.repo.retention import Best

CONFIG = f"{PREFIX}CONFIG"
OTHERS = frozenset(
    {"CONFIG", "GROUP", "GYM_DIR", "GYM_PATIENCE", "GYM_START", "KEY", "PROGRESS", "STATE_DIR", "TAKE_OVER"}
)
"""Variables that are no settings."""
OFF: Mapping[str, object] = {
    "best": None,
    "staging": None,
    "mirror": "",
    "monitoring": None,
    "compression_level": None,
    "sync_timeout": None,
    "allow_changed": frozenset[str](),
    "trust": False,
    "signals": (),
    "trackers": (),
}
"""What `none` means, for settings that can be nothing: a variable switches off what the file or the script has set."""


def read_variables(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the settings that variables give; an empty variable says nothing, `none` that there is to be none.

    Raises:
        ConfigError: a variable cannot be read, or has nearly the name of one.
    """
    for variable in environment:
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name in READERS or name.upper() in OTHERS:
            continue
        if other := elsewhere(name):
            raise ConfigError(
                f"{variable} is no setting: the file's {name} is called {other}.",
                hint=f"Write {PREFIX}{other.upper()}, or unset it.",
            )
        if is_demand(name):
            raise ConfigError(
                f"{variable} is no setting: {name} is a key of the file only.",
                hint="Unset it, or write it there.",
            )
        if near := nearest(name, READERS, cutoff=NEAR):
            raise ConfigError(
                f"{variable} is no setting.", hint=f"Did you mean {PREFIX}{near.upper()}? Else unset it."
            )
    found: dict[str, object] = {}
    for name, reader in READERS.items():
        variable = PREFIX + name.upper()
        text = environment.get(variable, "")
        if text == NONE and name in OFF:
            found[name] = OFF[name]
        elif text:
            found[name] = _read(variable, text, reader)
    return found


NEAR = 0.85
"""How much the name of a variable resembles that of a setting before it is taken for a slip. Others may have
variables that begin as ours do."""


def _read(variable: str, text: str, reader: Callable[[str, str], object]) -> object:
    try:
        return reader(variable, text)
    except ConfigError as error:
        if variable in error.message:
            raise
        raise ConfigError(f"{variable}={shown(text)}: {error.message}", hint=error.hint) from error


def _text(_variable: str, text: str) -> str:
    return text


def _integer(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{variable}={shown(text)} is not a whole number.", hint="Unset it, or give digits only."
        ) from None


def _seconds(variable: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"{variable}={shown(text)} is not a number of seconds.",
            hint="Unset it, or write it as 30 or 2.5.",
        ) from None


def _flag(variable: str, text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ConfigError(f"{variable}={shown(text)} is neither true nor false.", hint="Use 1 or 0.")
    return known[text.lower()]


def _trust(variable: str, text: str) -> bool | frozenset[str]:
    return _names(variable, text) if "." in text else _flag(variable, text)


def _monitoring(_variable: str, text: str) -> Monitoring:
    return Monitoring.parse(text)


def _names(_variable: str, text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _resume(variable: str, text: str) -> str | int:
    if text in RESUME_WORDS:
        return text
    try:
        return int(text)
    except ValueError:
        near = nearest(text, RESUME_WORDS)
        raise ConfigError(
            f"{variable}={shown(text)} is neither {', '.join(RESUME_WORDS)} nor a step number.",
            hint=f"Did you mean {near}?" if near else "Unset it for auto.",
        ) from None


def _best(_variable: str, text: str) -> Best:
    return Best.parse(text)


def _every(_variable: str, text: str) -> Every:
    return Every.parse(text)


READERS: dict[str, Callable[[str, str], object]] = {
    "root": _text,
    "job": _text,
    "every": _every,
    "keep_last": _integer,
    "best": _best,
    "resume": _resume,
    "worst_tier": _text,
    "strict": _flag,
    "allow_changed": _names,
    "trust": _trust,
    "keep_first": _flag,
    "document_format": _text,
    "staging": _integer,
    "writer": _text,
    "grace": _seconds,
    "signals": _names,
    "exit_code": _integer,
    "mirror": _text,
    "mirror_keep_last": _integer,
    "monitoring": _monitoring,
    "trackers": _names,
    "journal": _flag,
    "compression": _text,
    "compression_level": _integer,
    "incremental": _flag,
    "validate": _flag,
    "sync_timeout": _seconds,
}
