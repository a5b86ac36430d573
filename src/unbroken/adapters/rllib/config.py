"""The settings of an AlgorithmConfig as plain values, so that a change between two starts shows.

The config itself always is the program's. Not promised: settings that are functions or objects; what they
decide shows where it stands in the state, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unbroken.state.nodes import PLAIN, class_name

_NO_SETTINGS = ("callbacks", "logger", "log_", "export_", "output", "is_")
"""What begins so says nothing of how a run trains."""


def settings_of(config: Any) -> dict[str, object]:
    """Return what a person can set, as far as it is plain, a class, or made of such."""
    found: dict[str, object] = {}
    for name, value in sorted(vars(config).items()):
        if name.startswith("_") or name.startswith(_NO_SETTINGS):
            continue
        text = _plain(value)
        if text is not None or value is None:
            found[name] = text
    found["model_config"] = _plain(vars(config).get("_model_config"))
    return found


def _plain(value: object) -> object:
    """Return a value as it is told: itself, or a text that shows all of it. None: there is no such text."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, type):
        return class_name(value)
    if isinstance(value, Mapping):
        parts = {str(key): _plain(part) for key, part in value.items()}
        known = all(parts[str(key)] is not None or part is None for key, part in value.items())
        return ", ".join(f"{key}: {part}" for key, part in parts.items()) if known else None
    if isinstance(value, Collection) and isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        known = all(told is not None or item is None for told, item in zip(items, value, strict=True))
        return ", ".join(map(str, items)) if known else None
    return None


CLOCKS = ("min_time_s_per_iteration",)


def clock_warning(config: Any) -> str:
    """Return what makes the length of an iteration depend on the clock, and what to set; empty if nothing does.

    Then "iteration 10" is another moment in every run, and no two runs are equal, interrupted or not.
    """
    found: list[str] = []
    least = config.min_time_s_per_iteration
    if least:
        found.append(
            f"iterations last at least {least:g} s: set .reporting(min_time_s_per_iteration=0,"
            f" min_sample_timesteps_per_iteration=1000), so that steps decide"
        )
    if config.evaluation_interval and config.evaluation_duration == "auto":
        found.append(
            "evaluation lasts as long as training: set .evaluation(evaluation_duration=10), so that its length"
            " is known"
        )
    if config.seed is None:
        found.append("no seed is set, so two runs differ from the start: set .debugging(seed=0)")
    return "; ".join(found)
