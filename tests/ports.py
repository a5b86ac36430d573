"""Ports for what tests start: two tests never get the same one, in whichever processes they run at the same time."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
_taken: list[socket.socket] = []
"""What keeps a port from other tests, of other processes too: a name that the system frees with the process."""


def free_port() -> int:
    """Return a port that is free now, from below those that the system hands out itself."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind(f"\0unbroken-tests-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, port))
        except OSError:
            taken.close()
            continue
        _taken.append(taken)
        return port
