"""From a configuration file to settings, each with the place where it stands.

Invariant: a key does what it says, or the file is refused with the key's line: an unknown key, one of another type,
two that say the same thing, or one that asks for what there is not.

Not promised: that the settings fit each other. That is found when they are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from unbroken.engine.configuration import place
from unbroken.engine.configuration.names import MEANS, nearest
from unbroken.engine.configuration.place import Content, Path
from unbroken.engine.configuration.variables import OFF, READERS
from unbroken.engine.configuration.words import NONE
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.schedule import Every
from unbroken.errors import ConfigError, installing, shown
from unbroken.repo.retention import Best
from unbroken.repo.roots import is_url

SECTION = "checkpoint"


@dataclass(frozen=True, slots=True)
class Said:
    """A value, and where it stands."""

    value: object
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What a file says of settings. `root_kind` is a demand on the root, with its origin."""

    name: str
    settings: Mapping[str, Said]
    root_kind: Said | None = None

    def check_root(self, root: str) -> None:
        """Raise ConfigError where the root is not of the kind that the file asks for."""
        if self.root_kind is None:
            return
        asked, origin = self.root_kind.value, self.root_kind.origin
        if asked == "local_filesystem" and is_url(root):
            raise ConfigError(
                f"{origin}: checkpoint_format is local_filesystem, and the root is {root}.",
                hint="Leave the key out, or give a path.",
            )
        if asked == "ray_distributed" and not is_url(root) and not root.startswith("/"):
            raise ConfigError(
                f"{origin}: checkpoint_format is ray_distributed, and the root {root!r} is relative: each worker would"
                " find another one.",
                hint="Give an absolute path that all workers see, or a URL.",
            )


def read(path: str) -> Configured:
    """Return what the file at `path` says.

    Raises:
        ConfigError: it cannot be read, or asks for what cannot be.
    """
    return configured(place.read(path))


def configured(content: Content) -> Configured:
    """Return what a file says of settings."""
    given = _checked(content)
    keys = dict(_flat(given))
    _check_demands(keys, content)
    values: dict[str, Said] = {}
    said: dict[str, str] = {}
    for key, value in keys.items():
        if value is None:
            raise ConfigError(
                f"{_at(content, key)}: {key} has no value.", hint="Give one, or remove the key."
            )
        name = MEANS.get(key, key)
        if name not in READERS:
            continue
        _check_once(content, said, name, key)
        said[name] = key
        origin = _at(content, key)
        values[name] = Said(_value(name, key, value, values.get(name), origin), origin)
    kind = keys.get("checkpoint_format")
    at = _at(content, "checkpoint_format")
    return Configured(name=content.name, settings=values, root_kind=None if kind is None else Said(kind, at))


def _checked(content: Content) -> Mapping[str, Any]:
    """Return the section as it stands, once it is known to be of the right types."""
    try:
        import pydantic
    except ImportError as error:
        raise ConfigError(
            f"{content.name} needs pydantic to be read.", hint=installing("pydantic")
        ) from error
    from unbroken.engine.configuration.model import File

    data = content.data
    if not isinstance(data, dict):
        raise ConfigError(f"{content.name} holds no keys.", hint=f"It begins with `{SECTION}:`.")
    try:
        File.model_validate(data)
    except pydantic.ValidationError as error:
        raise _wrong(content, error) from None
    section = cast("dict[str, Any]", data).get(SECTION)
    return {} if section is None else section


def _wrong(content: Content, error: Any) -> ConfigError:
    """Return what is wrong first in the file: a key that there is not, before a value that is not of its type."""
    found = [(_path(content.data, one["loc"]), one) for one in error.errors()]

    def rank(one: tuple[Path, Any]) -> tuple[bool, int]:
        return one[1]["type"] != "extra_forbidden", int(content.at(one[0]).rpartition(":")[2])

    path, first = min(found, key=rank)
    if first["type"] == "extra_forbidden":
        known = _known(path[:-1])
        near = nearest(str(path[-1]), known)
        where = ".".join(map(str, path[:-1])) or "the file"
        hint = f"Did you mean {near}?" if near else f"There are: {', '.join(sorted(known))}."
        return ConfigError(f"{content.at(path)}: {where} has no key {shown(path[-1])}.", hint=hint)
    # What can be one thing or another has been tried as each of them.
    what = " or ".join(dict.fromkeys(_told(one) for at, one in found if at == path))
    key = ".".join(map(str, path)) or "the file"
    given = shown(first["input"])
    return ConfigError(
        f"{content.at(path)}: {key} {what}, and {given} is not that.",
        hint="docs/configuration.md says what each key takes.",
    )


def _path(data: object, place: tuple[str | int, ...]) -> Path:
    """Return the keys of the file among what pydantic says of a place; it names the types that it has tried, too."""
    path: Path = ()
    for part in place:
        if isinstance(data, dict) and part in data:
            data = cast("dict[object, object]", data)[part]
        elif isinstance(data, list) and isinstance(part, int):
            data = cast("list[object]", data)[part]
        else:
            continue
        path = (*path, part)
    return path


def _told(error: Any) -> str:
    """Return what a value should be, from what pydantic says of one that is not."""
    if error["type"] == "model_type":
        return "should hold keys"
    text = str(error["msg"]).removeprefix("Input ")
    return text.replace(", got", " and not").rstrip(".")


def _known(path: Path) -> list[str]:
    """Return the keys that there are in the section at `path`."""
    from pydantic import BaseModel

    from unbroken.engine.configuration import model

    sections: dict[Path, type[BaseModel]] = {
        (): model.File,
        (SECTION,): model.Checkpoint,
        (SECTION, "serialization"): model.Serialization,
        (SECTION, "distributed"): model.Distributed,
        (SECTION, "recovery"): model.Recovery,
    }
    ends: dict[Path, type[BaseModel]] = {
        ("every",): model.Interval,
        ("best",): model.BestBy,
        ("monitoring",): model.Metrics,
    }
    found = sections.get(path) or ends.get(path[1:2])
    return [] if found is None else [field.alias or name for name, field in found.model_fields.items()]


def _flat(section: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return every key with its value, those of sections under their dotted names."""
    found: list[tuple[str, object]] = []
    for key, value in section.items():
        if key in ("serialization", "distributed", "recovery"):
            parts = cast("dict[str, object]", value or {})
            found += [(f"{key}.{name}", part) for name, part in parts.items()]
        else:
            found.append((key, value))
    return found


def _at(content: Content, key: str) -> str:
    return content.at((SECTION, *key.split(".")))


def _check_once(content: Content, said: Mapping[str, str], name: str, key: str) -> None:
    """Raise ConfigError where two keys say one setting. The three of the interval are parts of one."""
    other = said.get(name)
    if other is None or (key.startswith("save_every_n_") and other.startswith("save_every_n_")):
        return
    if {key, other} == {"recovery.auto_resume", "recovery.resume_if_exists"}:
        return  # they have to agree, which `_value` looks after
    raise ConfigError(
        f"{_at(content, key)}: {key} and {other} both say {name}.", hint="Keep one of the two keys."
    )


def _check_demands(keys: Mapping[str, object], content: Content) -> None:
    rank = keys.get("distributed.coordinator_rank")
    if rank not in (None, 0):
        raise ConfigError(
            f"{_at(content, 'distributed.coordinator_rank')}: rank {shown(rank)} cannot be the coordinator: rank 0 writes the"
            " run.",
            hint="Write coordinator_rank: 0, or leave the key out.",
        )


def _value(name: str, key: str, value: Any, before: Said | None, origin: str) -> object:
    try:
        return _VALUES.get(key, _same)(name, key, value, None if before is None else before.value)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.message}", hint=error.hint) from error


def _same(name: str, _key: str, value: Any, _before: object) -> object:
    """Return a value as it stands, or as the variable of its setting would be read."""
    if value == NONE and name in OFF:
        return OFF[name]
    if isinstance(value, str) and name in ("every", "best", "monitoring"):
        return READERS[name](name, value)
    if isinstance(value, list):
        names = cast("list[str]", value)
        return tuple(names) if name == "signals" else frozenset(names)
    if isinstance(value, dict):
        made = cast("Callable[..., object]", {"every": Every, "best": Best, "monitoring": Monitoring}[name])
        return made(**cast("dict[str, object]", value))
    return cast("object", value)


def _interval(_name: str, key: str, value: Any, before: object) -> object:
    part: dict[str, Any] = {
        "save_every_n_steps": {"steps": value},
        "save_every_n_episodes": {"episodes": value},
        "save_every_n_hours": {"seconds": value * 3600},
    }[key]
    if not isinstance(before, Every):
        return Every(**part)
    whole: dict[str, Any] = {
        "steps": before.steps,
        "episodes": before.episodes,
        "seconds": before.seconds,
        **part,
    }
    return Every(**whole)


def _format(_name: str, _key: str, value: Any, _before: object) -> object:
    return {"json_pickle_hybrid": "json", "messagepack": "msgpack"}[value]


def _resume(_name: str, _key: str, value: Any, before: object) -> object:
    word = "auto" if value else "never"
    if before not in (None, word):
        raise ConfigError(
            "auto_resume and resume_if_exists contradict each other.", hint="Keep one of the two keys."
        )
    return word


_VALUES: Mapping[str, Callable[[str, str, Any, object], object]] = {
    "save_every_n_steps": _interval,
    "save_every_n_episodes": _interval,
    "save_every_n_hours": _interval,
    "serialization.format": _format,
    "recovery.auto_resume": _resume,
    "recovery.resume_if_exists": _resume,
}
