"""What stands outside of the script: the configuration file, and the variables.

Invariant: each value has its origin, and a variable stands above the file.

Not promised: that a file which is changed while the process runs is read again. What is settled stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from unbroken.engine.configuration import file, place
from unbroken.engine.configuration.file import Configured, Said
from unbroken.engine.configuration.variables import read_variables
from unbroken.engine.configuration.words import PREFIX


def configuration(environment: Mapping[str, str]) -> Configured | None:
    """Return what the configuration file says; None where there is none.

    Raises:
        ConfigError: it cannot be read or used.
    """
    path = place.find(environment)
    return file.read(path) if path else None


def said_beside(
    given: Collection[str], found: Configured | None, environment: Mapping[str, str]
) -> dict[str, Said]:
    """Return what is said beside the settings that code has `given`: what the file says of others, and what the variables say
    of any.

    Raises:
        ConfigError: a variable cannot be read.
    """
    said = {} if found is None else {name: one for name, one in found.settings.items() if name not in given}
    for name, value in read_variables(environment).items():
        said[name] = Said(value, PREFIX + name.upper())
    return said


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
