"""The effective settings as a table and as data: each with its value, and where that comes from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, is_dataclass
from typing import cast

from unbroken.engine.configuration.words import DEFAULT
from unbroken.engine.settings import NAMES, Settings
from unbroken.report.table import Cell, Column, Table

SCRIPT = "script"
"""The origin of what nothing but the script can say."""


def settings_table(settings: Settings) -> Table:
    """Return a row for each setting."""
    table = Table((Column("setting"), Column("value"), Column("from")))
    for name in NAMES:
        value, origin = _said(settings, name)
        table.add(name, _text(value), Cell(origin, "quiet") if origin in (DEFAULT, SCRIPT) else origin)
    return table


def settings_data(settings: Settings) -> dict[str, object]:
    """Return the settings for a machine."""
    found: dict[str, object] = {}
    for name in NAMES:
        value, origin = _said(settings, name)
        found[name] = {"value": _plain(value), "origin": origin}
    return {"file": settings.config_file or None, "settings": found}


def _said(settings: Settings, name: str) -> tuple[object, str]:
    origin = settings.origins[name]
    if name == "root" and origin == DEFAULT:
        return None, SCRIPT
    if name == "job" and origin == DEFAULT and settings.origins["root"] == DEFAULT:
        return None, SCRIPT
    return getattr(settings, name), origin


def _text(value: object) -> str:
    """Return a value as its variable takes it."""
    if value is None or value in ("", (), frozenset()):
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_dataclass(value) and not isinstance(value, type):
        parts: dict[str, object] = {k: v for k, v in asdict(value).items() if v not in (None, "")}
        if parts.keys() == {"metric", "mode"}:
            return f"{parts['metric']}:{parts['mode']}"
        return ",".join(f"{name}={_text(part)}" for name, part in parts.items())
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(_words(value)) if _is_collection(value) else str(_plain(value))


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(part) for name, part in asdict(value).items() if part is not None}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _words(value) if _is_collection(value) else str(value)


def _is_collection(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str)


def _words(value: object) -> list[str]:
    words = [str(part) for part in cast("Collection[object]", value)]
    return words if isinstance(value, tuple) else sorted(words)
