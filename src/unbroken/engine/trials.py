"""What every trial of an experiment needs as a run of its own, whichever adapter trains it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from unbroken.engine.configuration.words import PREFIX
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, RunBusy
from unbroken.repo.roots import is_url

PATIENCE = 60.0
"""Seconds that a trial waits for its own last process, which may still be ending."""
_PAUSE = 0.1


def settings_of_trial(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Return the settings with what the environment says, for a root that every trial sees alike.

    Raises:
        ConfigError: the root is relative.
    """
    # A job by the environment would be one run for all trials.
    settings = settings.overridden({k: v for k, v in environment.items() if k != f"{PREFIX}JOB"})
    root = os.fspath(settings.root)
    if not is_url(root) and not os.path.isabs(root):
        raise ConfigError(
            f"The root {root!r} is relative, and each trial runs in a directory of its own.",
            hint=f"Give an absolute path, for example {os.path.join('/shared', root)!r}, or a URL.",
        )
    # The process of a trial is Ray's: who ends it is the driver, and by other means than signals.
    return settings.changed(root=root, signals=())


def patiently(resume: Callable[[], ResumeReport], patience: float = PATIENCE) -> ResumeReport:
    """Resume, as soon as the last process of this trial has given its run back.

    Raises as `CheckpointEngine.resume` does; RunBusy after `patience` seconds only.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return resume()
        except RunBusy:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE)
