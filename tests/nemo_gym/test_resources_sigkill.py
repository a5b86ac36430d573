"""A real server under SIGKILL, at the moments that matter to a call."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port
from unbroken.adapters.nemo_gym import words

SCRIPT = Path(__file__).with_name("dying_counter.py")
PATIENCE = 300.0


@contextmanager
def _served(
    directory: Path, port: int, *when: str
) -> Generator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(directory), str(port), *when]
    process = subprocess.Popen(command, env=environment, cwd=directory.parent)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    client.get("/")
                    break
                except httpx.TransportError:
                    assert process.poll() is None, "it ended before it served"
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            yield process, client
    finally:
        process.kill()
        process.wait()


def _post(client: httpx.Client, path: str, body: object, call: str = "", cookie: str = "") -> httpx.Response:
    client.cookies.clear()
    headers = {words.ROLLOUT: "r", words.CALL: call, "cookie": cookie}
    return client.post(path, json=body, headers={key: value for key, value in headers.items() if value})


# Lines: 1 started, 2 what it was built with, 3 and 4 the seeding and 5 its state, 6 and 7 the increment. Waits: 1 started, 2 seeding, 3 the increment.
@pytest.mark.parametrize(
    ("when", "replayed"),
    [(("durable", "3"), True), (("append", "7"), False)],
    ids=["written, not answered", "executed, not written"],
)
def test_a_call_whose_answer_was_lost_is_executed_once(
    tmp_path: Path, when: tuple[str, str], replayed: bool
) -> None:
    port = free_port()
    with _served(tmp_path / "log", port, *when) as (process, client):
        seeded = _post(client, "/seed_session", {"initial_count": 3}, "1")
        cookie = "; ".join(f"{name}={value}" for name, value in seeded.cookies.items())
        with pytest.raises(httpx.TransportError):
            _post(client, "/increment_counter", {"count": 2}, "2", cookie)
        assert process.wait() == -9
    with _served(tmp_path / "log", port) as (process, client):
        again = _post(client, "/increment_counter", {"count": 2}, "2", cookie)
        assert again.json() == {"success": True}
        assert (words.REPLAYED in again.headers) is replayed
        assert _post(client, "/get_counter_value", {}, "3", cookie).json() == {"count": 5}
        # C: without its name the same request is executed once more.
        _post(client, "/increment_counter", {"count": 2}, "", cookie)
        assert _post(client, "/get_counter_value", {}, "4", cookie).json() == {"count": 7}


def test_a_server_that_does_not_keep_anything_counts_from_zero(tmp_path: Path) -> None:
    port = free_port()
    with _served(tmp_path / "one", port) as (_, client):
        seeded = _post(client, "/seed_session", {"initial_count": 3}, "1")
        cookie = "; ".join(f"{name}={value}" for name, value in seeded.cookies.items())
    with _served(tmp_path / "another", port) as (_, client):
        lost = _post(client, "/get_counter_value", {}, "2", cookie)
        assert (lost.status_code, lost.headers[words.REFUSED]) == (409, "unknown session"), "not 0"
