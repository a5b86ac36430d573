"""How a resources server gets its layer."""

from __future__ import annotations

from typing import Any

from unbroken.adapters.nemo_gym.options import Options
from unbroken.adapters.nemo_gym.server.middleware import ResourcesMiddleware
from unbroken.adapters.nemo_gym.sessions.states import SessionStates
from unbroken.errors import ConfigError


def attach(server: Any, app: Any, options: Options) -> None:
    """Put the layer around `app`, the application that `server` has built.

    Raises:
        ConfigError: the server holds sessions and is to run in several processes.
    """
    workers = getattr(server.config, "num_workers", None) or 1
    if workers > 1:
        states = SessionStates(
            server, key=options.key, capability=options.capability, exclude=options.exclude
        )
        if states.capability != "stateless":
            raise ConfigError(
                f"{type(server).__name__} has num_workers={workers}, and its sessions live in one process: "
                "a call would find them or not by chance.",
                hint="Set num_workers to 1, and start more instances if one is not enough.",
            )
    app.add_middleware(ResourcesMiddleware, server=server, application=app, options=options)
