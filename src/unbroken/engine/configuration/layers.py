"""The layers of a configuration: defaults < file < code < environment.

Invariant: of every setting it is known where its value comes from, and a value that cannot be used is blamed on the
file's line or the variable that says it.

Not promised: that a file which is changed while the process runs is read again. What is settled stays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import cast

from unbroken.engine.configuration import file, place
from unbroken.engine.configuration.file import Configured, Said
from unbroken.engine.configuration.variables import CONFIG, read_variables
from unbroken.engine.settings import PREFIX, Settings
from unbroken.errors import ConfigError

DEFAULT = "default"
NAMES = tuple(field.name for field in fields(Settings) if field.init)


def layered(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Return the settings with what the file and the variables say.

    Raises:
        ConfigError: the file or a variable cannot be read or used.
    """
    settled = len(settings.origins) == len(NAMES)
    found = None if settled else configuration(environment)
    said: dict[str, Said] = {}
    if found is not None:
        said = {name: one for name, one in found.settings.items() if name not in settings.origins}
    for name, value in read_variables(environment).items():
        said[name] = Said(value, PREFIX + name.upper())
    if not said and found is None:
        return settings
    origins = {**dict.fromkeys(NAMES, DEFAULT), **settings.origins}
    origins.update({name: one.origin for name, one in said.items()})
    made = _replaced(settings, said)
    if found is not None:
        found.check_root(os.fspath(made.root))
    return made.told(origins, settings.config_file if found is None else found.name)


def from_file(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Return the settings with what the file says, and without the variables: those are read where they act.

    Raises:
        ConfigError: the file cannot be read or used.
    """
    return layered(settings, {CONFIG: environment.get(CONFIG, "")})


def configuration(environment: Mapping[str, str]) -> Configured | None:
    """Return what the configuration file says; None where there is none.

    Raises:
        ConfigError: it cannot be read or used.
    """
    path = place.find(environment)
    return file.read(path) if path else None


def root_said(environment: Mapping[str, str]) -> Said | None:
    """Return where runs lie for a script, or a command, that does not say it itself.

    Raises:
        ConfigError: the configuration file cannot be read.
    """
    variable = f"{PREFIX}ROOT"
    if environment.get(variable):
        return Said(environment[variable], variable)
    found = configuration(environment)
    return None if found is None else found.settings.get("root")


def effective(environment: Mapping[str, str]) -> Settings:
    """Return the settings of a script that gives none.

    Raises:
        ConfigError: the file or a variable cannot be read or used.
    """
    root = root_said(environment)
    bare = Settings(root=cast("str", root.value) if root is not None else ".").told({}, "")
    made = layered(bare, environment)
    return made if len(made.origins) == len(NAMES) else made.told(dict.fromkeys(NAMES, DEFAULT), "")


def _replaced(settings: Settings, said: Mapping[str, Said]) -> Settings:
    if not said:
        return replace(settings)
    try:
        return replace(settings, **_values(said))  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"{_blamed(settings, said)}: {error.message}", hint=error.hint) from error


def _blamed(settings: Settings, said: Mapping[str, Said]) -> str:
    """Return the origin of the value that cannot be used by itself, or all of them if each can."""
    for name, one in said.items():
        try:
            replace(settings, **_values({name: one}))  # type: ignore[arg-type]
        except ConfigError:
            return one.origin
    return ", ".join(dict.fromkeys(one.origin for one in said.values()))


def _values(said: Mapping[str, Said]) -> dict[str, object]:
    return {name: one.value for name, one in said.items()}
