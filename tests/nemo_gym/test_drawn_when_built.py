"""What a server draws when it is built is the same after it was killed, also if nothing was saved since."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from drawing_server import DrawingServer
from serving import serving

from tests.ports import free_port
from unbroken.adapters.nemo_gym import words

SCRIPT = Path(__file__).with_name("drawing_server.py")
PATIENCE = 300.0


@contextmanager
def _served(directory: Path | str, port: int) -> Generator[httpx.Client]:
    """Serve in a process that is killed at the end of the block."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(directory), str(port)], env=environment)
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
            yield client
    finally:
        process.kill()
        process.wait()


def _asked(client: httpx.Client, path: str, call: str, cookie: str = "") -> tuple[Any, str]:
    client.cookies.clear()
    headers = {words.ROLLOUT: "r", words.CALL: call}
    answer = client.post(path, json={}, headers={**headers, "cookie": cookie} if cookie else headers)
    assert answer.status_code == 200, answer.text
    return answer.json(), cookie or "; ".join(f"{name}={value}" for name, value in answer.cookies.items())


def _killed_and_asked(directory: Path | str) -> tuple[Any, Any, Any, Any]:
    port = free_port()
    with _served(directory, port) as client:
        _, cookie = _asked(client, "/seed_session", "0")
        before, _ = _asked(client, "/bonus", "1", cookie)
        drawn, _ = _asked(client, "/draw", "2", cookie)
        drawn, _ = _asked(client, "/draw", "3", cookie)
    with _served(directory, port) as client:
        after, _ = _asked(client, "/bonus", "4", cookie)
        more, _ = _asked(client, "/draw", "5", cookie)
    return before, after, drawn["drawn"], more["drawn"]


def test_a_server_killed_before_its_first_save_has_what_it_drew(tmp_path: Path) -> None:
    before, after, drawn, more = _killed_and_asked(tmp_path / "log")
    assert after == before
    assert more[:2] == drawn
    assert len(more) == 3


def test_control_without_a_log_both_are_others() -> None:
    before, after, drawn, more = _killed_and_asked("-")
    assert after != before
    assert len(more) == 1
    assert more[0] not in drawn


def test_it_stays_through_restarts_and_is_told(tmp_path: Path) -> None:
    bonuses: list[float] = []
    numbers: list[list[float]] = []
    cookie = ""
    for start in range(3):
        with serving(DrawingServer, tmp_path) as server:
            cookie = cookie or server.seeded(rollout="r", call="seed")
            answer = server.post("/bonus", rollout="r", call=f"b{start}", cookie=cookie)
            bonuses.append(answer.json()["bonus"])
            numbers.append(server.post("/draw", rollout="r", call=f"d{start}", cookie=cookie).json()["drawn"])
            status = server.told("status")
            told = [note for note in status.recovery.notes if "as its log has it" in note]
            assert [note.partition(":")[0] for note in told] == ([] if start == 0 else ["_bonus", "_rng"])
            assert status.exclusions == ()
            assert {one.tier for one in server.recovered().values()} <= {"newest"}
    assert len(set(bonuses)) == 1
    assert numbers[1][:1] == numbers[0]
    assert numbers[2][:2] == numbers[1]
