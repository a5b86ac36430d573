"""What a server that will not, or cannot, do something is for its coordinator."""

from __future__ import annotations

import socket
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from unbroken.adapters.nemo_gym import control
from unbroken.adapters.nemo_gym.trainer.remote import Declined, Remote
from unbroken.errors import ConfigError, Fenced, ServerMissing, UnsupportedFormat

from .stand_in import TOKEN, Stack, StandIn

_MADE: list[Remote] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _MADE:
        _MADE.pop().close()


def remote_at(url: str, *, token: str = TOKEN, timeout: float = 300.0) -> Remote:
    _MADE.append(Remote("res", url, token=token, timeout=timeout))
    return _MADE[-1]


def remote_of(server: StandIn, **options: Any) -> Remote:
    return remote_at(server.url, **options)


def test_every_operation_is_asked_for_under_its_name(stack: Stack) -> None:
    remote = remote_of(stack.resources)
    assert remote.adopt("a run") == 1
    assert remote.status().epoch == 1
    stack.resources.put("s", {"total": 1, "steps": 0})
    remote.quiesce(timeout=5)
    exported = remote.export()
    assert (exported.complete, [r.key for r in exported.records]) == (True, ["s"])
    assert remote.export(lineage=exported.lineage, mark=exported.mark).records == []
    remote.release()
    remote.committed(exported.mark)
    prepared = remote.prepare({r.key: r.data for r in exported.records}, config_hash="as it was")
    assert (prepared.records, prepared.problems) == (1, ())
    remote.quiesce(timeout=5)
    assert remote.activate().sessions == 1
    assert [s.id for s in remote.sessions()] == [s.id for s in remote.digests()] == ["s"]
    record = remote.surrender("s", to="http://elsewhere:1")
    remote.receive(record.data)
    remote.settle("s", moved=True)
    remote.drop(["s"])
    assert stack.resources.kept == {}


def test_another_token_is_a_matter_of_configuration(stack: Stack) -> None:
    with pytest.raises(ConfigError, match="token"):
        remote_of(stack.resources, token="another").status()


def test_an_older_epoch_is_fenced(stack: Stack) -> None:
    first, second = remote_of(stack.resources), remote_of(stack.resources)
    first.adopt("one")
    second.adopt("two")
    with pytest.raises(Fenced, match="res: "):
        first.release()
    second.release()


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerMissing, match=r"'status'.*Look at those servers") as found:
        remote_at(f"http://127.0.0.1:{port}").status()
    assert found.value.servers == ("res",)


def test_a_server_that_says_nothing_is_named(stack: Stack) -> None:
    stack.resources.hearing.clear()
    with pytest.raises(ServerMissing, match="res did not answer 'adopt' in time"):
        remote_of(stack.resources, timeout=0.1).adopt("run")


def test_a_server_that_will_not_do_it_says_why(stack: Stack) -> None:
    remote = remote_of(stack.resources)
    remote.adopt("run")
    with pytest.raises(Declined, match="no session nowhere") as found:
        remote.surrender("nowhere", to="http://elsewhere:1")
    assert found.value.kind == "unknown session"


def test_another_major_version_is_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    status = stack.resources.do_status(control.Nothing())
    other = msgspec.structs.replace(status, protocol="2.0.0")
    monkeypatch.setattr(stack.resources, "do_status", lambda _: other)
    with pytest.raises(UnsupportedFormat, match=r"res speaks version 2\.0\.0"):
        remote_of(stack.resources).status()


@pytest.mark.parametrize("status", [200, 404, 405, 422])
def test_a_server_without_a_control_side_is_to_be_wrapped(status: int) -> None:
    class Plain(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"detail": "Not Found"}')

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with pytest.raises(ConfigError, match=r"checkpointed\(\)"):
                remote_at(f"http://127.0.0.1:{server.server_address[1]}").status()
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://host", "http://host:port", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of the server res"):
        Remote("res", url, token=TOKEN)


def test_without_httpx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ConfigError, match="pip install httpx"):
        Remote("res", "http://127.0.0.1:1", token=TOKEN)


def test_a_server_of_another_kind_has_other_operations(stack: Stack) -> None:
    remote = remote_of(stack.resources)
    remote.adopt("run")
    with pytest.raises(Declined, match="no operation 'policy'"):
        remote.policy("v1")


def test_an_answer_that_drips_is_left_when_the_time_is_over() -> None:
    """Each read is bounded by itself: an answer in small pieces would hold a save up for ever."""
    over = Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/msgpack")
            self.send_header("content-length", "60")
            self.end_headers()
            with suppress(OSError):
                for _ in range(60):
                    self.wfile.write(b"\x80")
                    over.wait(0.05)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serving(Dripping) as url:
        try:
            with pytest.raises(ServerMissing, match="res did not answer 'export' in time"):
                remote_at(url).export(timeout=0.3)
        finally:
            over.set()


def test_a_server_that_breaks_is_not_called_unwrapped() -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"KeyError: 'x'")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serving(Broken) as url, pytest.raises(Declined, match=r"export broke there .*KeyError") as found:
        remote_at(url).export()
    assert found.value.servers == ("res",)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """Serve in a thread, and give the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
