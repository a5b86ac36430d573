"""The reference of the configuration, from the model of the file and the settings.

Invariant: every key of the model has a row, with its type and its default as the code has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, cast

INTRODUCTION = """\
# Every key and every setting

All keys of `unbroken.yaml`. A key that has a default here is a setting: also a keyword of every face (`unbroken.Run`,
`CheckpointCallback`, …), and a variable, `UNBROKEN_` and its name in capitals. [Configuration](../configuration.md) says which
of them wins, and has files to begin with.
"""
TABLES = {
    "Checkpoint": "`checkpoint`",
    "Serialization": "`checkpoint.serialization`",
    "Distributed": "`checkpoint.distributed`",
    "Recovery": "`checkpoint.recovery`",
    "Interval": "`every` as a mapping",
    "BestBy": "`best` as a mapping",
    "Metrics": "`monitoring` as a mapping",
}
SECTIONS = {"Serialization": "serialization.", "Distributed": "distributed.", "Recovery": "recovery."}
"""Models of the file that are sections of it, and what their keys begin with."""
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "flag", "array": "list"}


def page() -> str:
    """Return the whole page."""
    from unbroken.engine.configuration.model import schema

    models: dict[str, Any] = dict(cast("dict[str, Any]", schema()["$defs"]))
    parts = [INTRODUCTION]
    for name, title in TABLES.items():
        model = models.pop(name)
        settings, keys = name == "Checkpoint", name == "Checkpoint" or name in SECTIONS
        head = ["key", "value", *(["default"] if settings else []), "meaning"]
        rows = "".join(_rows(model, SECTIONS.get(name, ""), settings=settings, keys=keys))
        table = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n{rows}"
        parts.append(f"## {title}\n\n{model['description']}\n\n{table}")
    if models:
        raise LookupError(f"These parts of the file have no table: {sorted(models)}.")
    return "\n".join(parts)


def _rows(model: Mapping[str, Any], prefix: str, *, settings: bool, keys: bool) -> Iterator[str]:
    """`settings`: the model's keys are settings themselves; `keys`: they are keys below `checkpoint`."""
    from unbroken.engine.configuration.names import MEANS

    defaults = _defaults()
    for key, about in model["properties"].items():
        if prefix == "" and f"{key}." in SECTIONS.values():
            continue  # it has a table of its own
        said = about["description"]
        if keys and (setting := MEANS.get(prefix + key)):
            said = f"{said} Sets `{setting}`."
        cells = [f"`{key}`", _value(about)]
        if settings:
            cells.append(defaults.get(key, ""))
        yield f"| {' | '.join([*cells, said.replace('|', chr(92) + '|')])} |\n"


def _defaults() -> dict[str, str]:
    """Return the default of every setting in words."""
    from unbroken.engine.settings import Settings

    found = {field.name: field.default for field in fields(Settings) if field.init}
    return {name: _word(default) for name, default in found.items()} | {
        "job": "the last part of the root",
        "root": "must be said",
    }


def _word(default: object) -> str:
    if default in (None, "", MISSING):
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(map(str, cast('tuple[object, ...]', default)))}]`"
    return f"`{default}`" if isinstance(default, (int, float)) or " " not in str(default) else str(default)


def _value(about: Mapping[str, Any]) -> str:
    """Return what may stand as a value, in words."""
    if "anyOf" in about:
        return " or ".join(_value(one) for one in about["anyOf"] if one.get("type") != "null")
    if "enum" in about:
        return ", ".join(f"`{one}`" for one in about["enum"])
    if "const" in about:
        return f"`{about['const']}`"
    if "$ref" in about:
        return "a mapping"
    bounds = [
        f"{word} {about[name]:g}"
        for name, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if name in about
    ]
    word = _WORDS[about["type"]]
    if about["type"] == "array":
        word = f"list of {_WORDS[about['items']['type']]}s"
    return f"{word} {', '.join(bounds)}".strip()
