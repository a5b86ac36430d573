"""An HTTP endpoint from which Prometheus fetches the metrics of one run.

Invariants: it serves this process's run and nothing else; a forked child neither serves nor keeps the port from
whoever comes after us.

Not promised: protection. Whoever can reach the address can read the metrics; by default that is this host.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from importlib import import_module
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from prometheus_client import CollectorRegistry

POLL_SECONDS = 0.1
"""How soon it sees that it is to end, for which a run waits."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # who reads slowly does not hold a run up at its end

    def server_bind(self) -> None:
        """Bind without asking a name server who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing: the output is the training's."""


class Endpoint:
    """Serves a registry until it is closed.

    Raises:
        OSError: the address cannot be had.
    """

    def __init__(self, registry: CollectorRegistry, *, address: str, port: int) -> None:
        library: Any = import_module("prometheus_client")  # what it says of its application is "anything"
        app: WSGIApplication = library.make_wsgi_app(registry)
        server = _ServerV6 if ":" in address else _Server
        self._server = make_server(address, port, app, server, handler_class=_Quiet)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="unbroken-endpoint", daemon=True
        )
        _serving.add(self)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/metrics"

    def close(self) -> None:
        """Stop serving, and give the port back."""
        _serving.discard(self)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def drop(self) -> None:
        """Let go of the port in a process that does not serve."""
        self._server.socket.close()


_serving: weakref.WeakSet[Endpoint] = weakref.WeakSet()
"""Those of this process. A hook at the fork cannot be taken back: there is one, for whichever serve then."""


def _drop_all() -> None:
    for endpoint in list(_serving):
        endpoint.drop()
    _serving.clear()


# A worker that outlives a killed training would keep the port, and the next start could not have it.
os.register_at_fork(after_in_child=_drop_all)
