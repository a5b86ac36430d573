"""A proxy in front of a real server that does to requests and answers what networks do.

One request a connection, so that whatever happens to one touches no other.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

HOST = "127.0.0.1"
CONFLICT = (
    b"HTTP/1.1 409 Conflict\r\nContent-Length: 39\r\nConnection: close\r\n\r\n"
    b"<Code>ConditionalRequestConflict</Code>"
)
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Fault(Enum):
    """What happens to a request."""

    BUSY = "503, and the server never hears of it"
    CONFLICT = "409: two conditional writes at once, neither carried out"
    LOST = "the server has carried it out; the connection is closed without an answer"
    LOST_503 = "the server has carried it out; the answer says 503"
    CUT = "the connection is closed in the middle of the answer's body"
    REFUSED = "the connection is closed before the server hears of it"
    STALE = "answered with what the server said to the same request before"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as far as a rule needs it. `target` is path and query."""

    method: str
    target: str
    number: int
    """How many requests came before it."""


Rule = Callable[[Request], "Fault | None"]


def when(fault: Fault, *, method: str = "", target: str = "", times: int = 10**9) -> Rule:
    """Return a rule: requests of this method whose target holds `target` meet `fault`, so many times."""
    left = [times]

    def rule(request: Request) -> Fault | None:
        if method not in ("", request.method) or target not in request.target or not left[0]:
            return None
        left[0] -= 1
        return fault

    return rule


@dataclass
class Proxy:
    """Listens on `port` while in its `with` block. `rule` says what happens to a request; None: nothing."""

    server: int
    rule: Rule = lambda request: None
    requests: list[Request] = field(default_factory=list[Request])
    port: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _answers: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def __enter__(self) -> Proxy:  # noqa: PYI034 - Self needs Python 3.11
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                self._answer(client)
        except OSError:
            pass  # a client that has gone: some tests kill it

    def _answer(self, client: socket.socket) -> None:
        sent = _message(client)
        if not sent:
            return
        method, target = sent.split(b" ", 2)[:2]
        with self._guard:
            request = Request(method.decode(), target.decode(), len(self.requests))
            self.requests.append(request)
            fault = self.rule(request)
        if fault is Fault.REFUSED:
            return
        if fault in (Fault.BUSY, Fault.CONFLICT):
            client.sendall(BUSY if fault is Fault.BUSY else CONFLICT)
            return
        before = self._answers.get(request.target)
        answer = before if fault is Fault.STALE and before is not None else self._forward(sent)
        if request.method == "GET" and fault is not Fault.STALE:
            self._answers[request.target] = answer
        if fault is Fault.LOST:
            return
        if fault is Fault.LOST_503:
            answer = BUSY
        if fault is Fault.CUT:
            answer = answer[: (answer.index(b"\r\n\r\n") + 4 + len(answer)) // 2]
        client.sendall(answer)

    def _forward(self, sent: bytes) -> bytes:
        head, _, body = sent.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        with socket.create_connection((HOST, self.server)) as server:
            server.sendall(b"\r\n".join([*lines, b"Connection: close", b"", body]))
            answer = bytearray()
            while part := server.recv(1 << 16):
                answer += part
        return bytes(answer)


def _message(connection: socket.socket) -> bytes:
    """Return one whole request, with its body; nothing where the client closes the connection first."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            return b""
        data += part
    head = bytes(data).partition(b"\r\n\r\n")[0]
    headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    missing = len(head) + 4 + int(headers.get(b"content-length", b"0")) - len(data)
    while missing > 0:
        part = connection.recv(1 << 16)
        if not part:
            return b""
        data += part
        missing -= len(part)
    return bytes(data)
