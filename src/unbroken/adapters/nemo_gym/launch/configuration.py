"""Reads NeMo Gym's global configuration: which servers there are, and where they answer.

An instance is an entry of three levels, `name: {kind: {directory: {entrypoint, …}}}`. All here is pure; what NeMo Gym
alone can do (merge files, follow references) is in `resolve`.

Not promised: that NeMo Gym accepts an entry. It says so itself when the server starts.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from unbroken.errors import ConfigError

Source: TypeAlias = "Mapping[str, Any] | str | Path | Sequence[str | Path]"
"""A configuration: NeMo Gym's global dict, a YAML file, or several, as its `config_paths` takes them."""
Plain: TypeAlias = "dict[str, Any]"

KINDS = ("resources_servers", "responses_api_agents", "responses_api_models")
PATHS = "config_paths"
HEAD = "head_server"
HEAD_PORT = 11000
RAY_ADDRESS = "ray_head_node_address"
OWN = "unbroken"
"""The key, in a server's settings, of what is meant for Unbroken."""
_NEEDS_NEMO_GYM = frozenset({PATHS, "_inherit_from", "_copy", "_delete_key"})


@dataclass(frozen=True, slots=True)
class Instance:
    """One server to start. `port` is None where the configuration leaves it open."""

    name: str
    kind: str
    directory: str
    entrypoint: str
    host: str = "127.0.0.1"
    port: int | None = None
    workers: int = 1

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host  # IPv6
        return f"http://{host}:{self.port}"


def plain(source: Source) -> Plain:
    """Return a configuration as a plain dict that can be written as JSON.

    Raises:
        ConfigError: it holds something that a configuration file could not.
    """
    if isinstance(source, str | Path):
        return {PATHS: [str(source)]}
    if not isinstance(source, Mapping):
        return {PATHS: [str(path) for path in source]}
    values: Any = _container(source) if type(source).__module__.startswith("omegaconf") else dict(source)
    try:
        copied: Plain = json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The configuration cannot be written as JSON: {error}.",
            hint="Give names, numbers, texts, lists and mappings only.",
        ) from error
    return copied


def needs_nemo_gym(config: Any) -> bool:
    """Whether only NeMo Gym can say what this configuration means: it names files, or refers to other places."""
    if isinstance(config, Mapping):
        return any(key in _NEEDS_NEMO_GYM or needs_nemo_gym(value) for key, value in config.items())
    if isinstance(config, list):
        return any(needs_nemo_gym(value) for value in config)
    return isinstance(config, str) and ("${" in config or config == "???")


def instances(config: Mapping[str, Any]) -> tuple[Instance, ...]:
    """Return the servers of a resolved configuration, in its order.

    Raises:
        ConfigError: there is none, or one has a name that no directory can have.
    """
    found: list[Instance] = []
    for name, entry in config.items():
        inner = _settings(entry)
        if inner is None:
            continue
        kind, directory, settings = inner
        if "/" in name or name.startswith(".") or not name:
            raise ConfigError(
                f"The server {name!r} cannot have a directory of its name.",
                hint="Give it a name without slashes, and without a dot in front.",
            )
        found.append(
            Instance(
                name=name,
                kind=kind,
                directory=directory,
                entrypoint=str(settings["entrypoint"]),
                host=str(settings.get("host") or config.get("default_host") or "127.0.0.1"),
                port=int(settings["port"]) if settings.get("port") else None,
                workers=int(settings.get("num_workers") or 1),
            )
        )
    if not found:
        raise ConfigError(
            "The configuration names no server to start.",
            hint=f"An entry is `name: {{kind: {{directory: {{entrypoint: app.py}}}}}}`, with a kind of {', '.join(KINDS)}.",
        )
    return tuple(found)


def settings_of(config: Mapping[str, Any], name: str) -> Plain:
    """Return the settings of one server.

    Raises:
        ConfigError: there is no such server.
    """
    inner = _settings(config.get(name))
    if inner is None:
        names = ", ".join(key for key, entry in config.items() if _settings(entry)) or "none"
        raise ConfigError(
            f"The configuration has no server {name!r}; it has {names}.", hint="Name one of those."
        )
    return inner[2]


def with_addresses(config: Plain, placed: Sequence[Instance], *, head: tuple[str, int]) -> Plain:
    """Return a copy in which every server has its host and port, and with what NeMo Gym's servers ask for."""
    result = plain(config)
    for instance in placed:
        settings = settings_of(result, instance.name)
        settings["host"], settings["port"] = instance.host, instance.port
    result.setdefault("dry_run", False)
    if not result.get(HEAD):
        result[HEAD] = {"host": head[0], "port": head[1]}
    return result


def _settings(entry: Any) -> tuple[str, str, Plain] | None:
    if not isinstance(entry, dict):
        return None
    for kind in KINDS:
        directories = entry.get(kind)
        if isinstance(directories, dict) and directories:
            directory, settings = next(iter(directories.items()))
            if isinstance(settings, dict) and settings.get("entrypoint"):
                return kind, directory, settings
    return None


def _container(source: Any) -> Any:
    return importlib.import_module("omegaconf").OmegaConf.to_container(source, resolve=True)
