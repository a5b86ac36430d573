"""Where the servers of NeMo Gym are, read from its own configuration."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from unbroken.adapters.nemo_gym.trainer.remote import GLOBAL_CONFIG, http
from unbroken.errors import ConfigError, ServerMissing, installing

_REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Where a server is reached that listens on all addresses of this machine."""
KINDS = ("resources_servers", "responses_api_agents", "responses_api_models")


def servers_of(config: Mapping[str, Any], *, leave_out: Collection[str] = ()) -> dict[str, str]:
    """Return the address of every server in NeMo Gym's global configuration, by the name of its instance.

    Raises:
        ConfigError: there is none in it, or one has no host or port.
    """
    found: dict[str, str] = {}
    for name, instance in config.items():
        kinds = [kind for kind in KINDS if isinstance(instance, Mapping) and kind in instance]
        if not kinds or name in leave_out:
            continue
        servers = instance[kinds[0]]
        server = next(iter(servers.values()), None) if isinstance(servers, Mapping) else None
        if not isinstance(server, Mapping) or not server.get("host") or not server.get("port"):
            raise ConfigError(
                f"The server {name} has no host or port in the configuration.",
                hint="Fix both there, so that a restarted server is found where it was.",
            )
        host = _REACHED.get(str(server["host"]), str(server["host"]))
        found[name] = f"http://{f'[{host}]' if ':' in host else host}:{server['port']}"
    if not found:
        raise ConfigError(
            "There is no server in this configuration.", hint="Give NeMo Gym's global config dict."
        )
    return found


def config_at(address: str) -> Mapping[str, Any]:
    """Return the global configuration as the head server at `address` gives it.

    Raises:
        ServerMissing: it does not answer.
        ConfigError: this is no head server, or PyYAML is not installed.
    """
    library = http()
    try:
        yaml = importlib.import_module("yaml")  # ships no types
    except ImportError as error:
        raise ConfigError(
            "Reading the head server's configuration needs PyYAML.",
            hint=installing("pyyaml"),
        ) from error
    url = f"{address.rstrip('/')}{GLOBAL_CONFIG}"
    try:
        reply = library.get(url, timeout=30.0, trust_env=False)
    except library.InvalidURL as error:
        raise ConfigError(
            f"{address!r} is no address of a head server: {error}.",
            hint='Give one like "http://127.0.0.1:11000".',
        ) from error
    except (library.TransportError, library.UnsupportedProtocol) as error:
        raise ServerMissing(
            f"The head server at {address} did not answer ({error}).", servers=["head_server"]
        ) from error
    try:
        found = yaml.safe_load(json.loads(reply.content)) if reply.status_code == 200 else None
    except (ValueError, yaml.YAMLError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"There is no head server of NeMo Gym at {address} (HTTP {reply.status_code}).",
            hint="Give the address in the entry head_server of the configuration.",
        )
    return found
