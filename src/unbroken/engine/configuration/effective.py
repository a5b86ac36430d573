"""The settings of one who gives none, or only some: what the file and the variables make of them.

How the layers lie over each other (defaults < file < code < environment) is told by `Settings.overridden`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from unbroken.engine.configuration.sources import root_said
from unbroken.engine.configuration.variables import CONFIG
from unbroken.engine.configuration.words import DEFAULT
from unbroken.engine.settings import NAMES, Settings


def from_file(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Return the settings with what the file says, and without the variables: those are read where they act.

    Raises:
        ConfigError: the file cannot be read or used.
    """
    return settings.overridden({CONFIG: environment.get(CONFIG, "")})


def effective(environment: Mapping[str, str]) -> Settings:
    """Return the settings of a script that gives none.

    Raises:
        ConfigError: the file or a variable cannot be read or used.
    """
    root = root_said(environment)
    bare = Settings(root=cast("str", root.value) if root is not None else ".").told({}, "")
    made = bare.overridden(environment)
    return made if len(made.origins) == len(NAMES) else made.told(dict.fromkeys(NAMES, DEFAULT), "")
