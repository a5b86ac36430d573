"""An HTTP endpoint from which Prometheus fetches the metrics of one run.

Invariants: it serves this process's run and nothing else; a forked child neither serves nor keeps the port from
whoever comes after us.

Not promised: protection. Whoever can reach the address can read the metrics; by default that is this host.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry


class Endpoint:
    """Serves a registry until it is closed.

    Raises:
        OSError: the address cannot be had.
    """

    def __init__(self, registry: CollectorRegistry, *, address: str, port: int) -> None:
        from prometheus_client import start_http_server

        served: tuple[WSGIServer, Thread] = start_http_server(port, addr=address, registry=registry)
        self._server, self._thread = served
        # A worker that outlives a killed training would keep the port, and the next start could not have it.
        mine: weakref.ref[Endpoint] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(mine))

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/metrics"

    def close(self) -> None:
        """Stop serving, and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def drop(self) -> None:
        """Let go of the port in a process that does not serve."""
        self._server.socket.close()


def _forget(reference: weakref.ref[Endpoint]) -> None:
    endpoint = reference()
    if endpoint is not None:
        endpoint.drop()
