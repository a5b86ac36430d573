"""The notice of a cloud becomes a signal: a real training, told by a real server that answers as the cloud's does."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "spot" / "with_notice.py"
TRAINING = """
import sys, numpy as np, unbroken
weights = np.zeros(4)
run = unbroken.Run("run", every=10)
run.track(weights=weights)
for step in run.steps(int(sys.argv[1])):
    weights += 1
    if step == 20:
        open("begun", "w").close()
"""
BEGUN = "begun"


class Cloud(ThreadingHTTPServer):
    """Says nothing until the training has begun; then what the cloud says before it takes a machine back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def takes_back(self) -> bool:
        return (self.folder / BEGUN).exists()


class Answer(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._say(200, "token")

    def do_GET(self) -> None:
        cloud = self.server
        assert isinstance(cloud, Cloud)
        path, told = self.path, cloud.takes_back
        cloud.asked.append(path)
        if path == "/latest/meta-data/spot/instance-action":
            assert self.headers["X-aws-ec2-metadata-token"] == "token"
            self._say(200, '{"action": "terminate"}') if told else self._say(404, "")
        elif path == "/computeMetadata/v1/instance/preempted":
            assert self.headers["Metadata-Flavor"] == "Google"
            self._say(200, "TRUE" if told else "FALSE")
        else:
            assert path.startswith("/metadata/scheduledevents")
            assert self.headers["Metadata"] == "true"
            kinds = ["Freeze", "Preempt"] if told else ["Freeze"]
            self._say(200, json.dumps({"Events": [{"EventType": kind} for kind in kinds]}))

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of its base
        pass


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with Cloud(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def start(cloud: str, folder: Path, steps: int, address: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAINING)
    command = [
        sys.executable,
        str(EXAMPLE),
        cloud,
        "--pause",
        "0.05",
        "--",
        sys.executable,
        "train.py",
        str(steps),
    ]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "SPOT_METADATA": address}, capture_output=True, text=True, check=False,
        timeout=280,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_each_cloud_is_asked_as_it_wants_and_understood(
    name: str, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOT_METADATA", f"http://127.0.0.1:{cloud.server_port}")
    notice = runpy.run_path(str(EXAMPLE))[name]
    assert notice() == ""
    (tmp_path / BEGUN).touch()
    assert notice()


def test_a_notice_makes_the_training_save_and_end_with_its_status(cloud: Cloud, tmp_path: Path) -> None:
    done = start("aws", tmp_path, 10**9, f"http://127.0.0.1:{cloud.server_port}")
    assert done.returncode == 75, done.stderr
    assert "unbroken: SIGTERM: step" in done.stderr
    assert "the same command goes on from there" in done.stderr
    assert cloud.asked


def test_where_nobody_answers_the_training_goes_on_to_its_end_and_it_is_heard_once(tmp_path: Path) -> None:
    done = start("gcp", tmp_path, 20_000, "http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("does not answer") == 1
