"""Runs the server: takes a port, says where to look, and ends in order on SIGINT and SIGTERM."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import metadata
from types import FrameType

import uvicorn

from unbroken.errors import ConfigError
from unbroken.ui.app.access import TOKEN, Access
from unbroken.ui.app.application import application
from unbroken.ui.app.site import Site

PORT = 8484
"""Taken where it is free and no other is asked for."""
PATIENCE = 2
"""Seconds that requests get to be answered at the end."""


def serve(
    root: str,
    *,
    host: str,
    port: int | None,
    allow_write: bool,
    allow_hosts: frozenset[str],
    tell: Callable[[str], None],
) -> None:
    """Serve the pages of a root until the process is told to end. `port` 0 takes any, None the usual one or any.

    Raises:
        ConfigError: the root, the host or the port cannot be used.
        StoreError: the root's store does not answer.
    """
    listening = listen(host, port)
    try:
        access = Access(
            host, listening.getsockname()[1], hosts=frozenset(name.lower() for name in allow_hosts)
        )
        site = Site(
            root,
            access,
            allow_write=allow_write,
            version=metadata.version("unbroken"),
            plotly_version=metadata.version("plotly"),
        )
        site.catalogue.check()
        server = uvicorn.Server(
            uvicorn.Config(
                application(site), log_level="warning", access_log=False, server_header=False, date_header=False,
                proxy_headers=False, ws="none", timeout_graceful_shutdown=PATIENCE, lifespan="on",
            )
        )  # fmt: skip
        for line in greeting(access, root, allow_write=allow_write):
            tell(line)
        with ended_by_signals():
            server.run(sockets=[listening])
    finally:
        listening.close()


class _Ended(BaseException):
    """A signal has asked for the end."""


@contextmanager
def ended_by_signals() -> Generator[None, None, None]:
    """Take SIGINT and SIGTERM as the wish to end, which is no failure: what serves ends in order, and then sends itself the
    signal that it has had once more."""

    def end(_: int, __: FrameType | None) -> None:
        raise _Ended

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Ended:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def greeting(access: Access, root: str, *, allow_write: bool) -> list[str]:
    """Return what is printed: where to look, and who can."""
    name = f"[{access.host}]" if ":" in access.host else access.host
    shown = {"0.0.0.0": socket.gethostname(), "[::]": socket.gethostname()}.get(name, name)  # noqa: S104 - a name to be shown
    lines = [
        f"Runs under {printable(root)}: http://{shown}:{access.port}/?{TOKEN}={access.token}",
        "Checkpoints can be deleted from these pages."
        if allow_write
        else "These pages only look: nothing is changed.",
    ]
    if not access.is_local:
        lines.append(
            "Whoever has this address sees the runs, and it goes over the network as it is. A tunnel is safer: "
            f"ssh -L {access.port}:127.0.0.1:{access.port} HOST"
        )
    return [*lines, "Ctrl-C ends them."]


def printable(text: str) -> str:
    """Return a path such that any terminal takes it: bytes of it that are no text as Python writes them."""
    return text.encode("utf-8", "backslashreplace").decode()


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: the port is taken, or the host is none of this machine.
    """
    try:
        return _bound(host, PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return _listen_anywhere(host)
        if isinstance(error, socket.gaierror) or error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise ConfigError(
                f"{host!r} is no address of this machine.", hint="Leave --host out for this machine alone."
            ) from error
        raise ConfigError(
            f"Port {port} cannot be taken: {error.strerror}.",
            hint="Give another --port, or 0 for any that is free.",
        ) from error


def _listen_anywhere(host: str) -> socket.socket:
    return _bound(host, 0)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made
