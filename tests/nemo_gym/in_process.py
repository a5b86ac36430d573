"""Real servers of NeMo Gym in the process of a test: no Ray, no ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def build(
    cls: Any, name: str = "res", *, servers: Mapping[str, Any] | None = None, **config: Any
) -> tuple[Any, Any]:
    """Return a server of `cls` and its application, as `run_webserver` would build them.

    `servers` is what the global configuration says of others (instance name -> its part); `config` are further
    settings of the server's own.
    """
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from omegaconf import OmegaConf

    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1),
        global_config_dict=OmegaConf.create(dict(servers or {})),
    )
    settings = {
        "host": "127.0.0.1",
        "port": 1,
        "entrypoint": "app.py",
        "name": name,
        "domain": "agent",
        **config,
    }
    server = cls(config=cls.model_fields["config"].annotation(**settings), server_client=client)
    return server, server.setup_webserver()
