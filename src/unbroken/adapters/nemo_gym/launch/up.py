"""Servers in a terminal: `unbroken gym up CONFIG… --dir DIR`. They run until Ctrl-C, SIGTERM or a closed terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection
from pathlib import Path
from types import FrameType

from unbroken.adapters.nemo_gym.launch.configuration import HEAD, Source
from unbroken.adapters.nemo_gym.launch.supervisor import Servers
from unbroken.errors import ConfigError, ServerMissing

EXIT_OK = 0
EXIT_FAILED = 2


def up(
    config: Source,
    *,
    directory: Path | str,
    python: str | None = None,
    external: Collection[str] = (),
    head: bool = False,
    preload: bool = False,
    restarts: int = 5,
) -> int:
    """Start servers, say where they are, and keep them running; return the exit code.

    Raises:
        UnbrokenError: they could not be started; see `Servers`.
    """
    servers = Servers(
        config,
        directory=directory,
        python=python,
        external=external,
        head=head,
        preload=preload,
        restarts=restarts,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with servers:
            for name, address in servers.addresses.items():
                _print(f"{name}  {address}")
            if head:
                _print(f"{HEAD}  http://{servers.config[HEAD]['host']}:{servers.config[HEAD]['port']}")
            _print(f"all servers are ready; logs in {servers.directory}; Ctrl-C ends them")
            servers.wait()
    except KeyboardInterrupt:
        return EXIT_OK
    except (ServerMissing, ConfigError):
        if not servers.failed:
            raise
        return EXIT_FAILED  # the supervisor has said it
    return EXIT_OK


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what a handler takes
    raise KeyboardInterrupt


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
