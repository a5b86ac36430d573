"""MLflow, with the client as it is: a store in a file, and a server of its own.

All in `make exactness`, since a process takes seconds to load MLflow.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.monitoring.tracking import CHECKPOINT, TOTAL, Forked, environment, finished, killed, until
from tests.ports import HOST, free_port
from unbroken.trackers import mlflow_run

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "GIT_PYTHON_REFRESH": "quiet"}
STEPS = list(range(TOTAL))
SAVED = [0, 10, 20, 30, 40]


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Whether there is an MLflow that can be imported, asked without that: it takes seconds."""
    try:
        version = metadata.version("mlflow-skinny")
    except metadata.PackageNotFoundError:
        version = "0"
    if int(version.partition(".")[0]) < 3:
        if os.environ.get("CI") == "true":
            pytest.fail("MLflow 3 is not installed")
        pytest.skip("MLflow 3 is not installed")


class Held:
    """What lies in the database of MLflow, read without it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def ask(self, question: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(self._file)) as database:
            return list(database.execute(question, values))

    def points(self, name: str) -> list[int]:
        found = self.ask("SELECT step FROM metrics WHERE key = ? ORDER BY step, timestamp", name)
        return [int(step) for (step,) in found]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def server(tmp_path: Path, store: str) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", HOST]
    command += ["--port", str(port), "--workers", "1", "--default-artifact-root", str(tmp_path / "artifacts")]
    with (
        (tmp_path / "server.log").open("wb") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **QUIET}, start_new_session=True
        ) as process,
    ):
        try:
            until(lambda: process.poll() is not None or answers(port))
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            yield f"http://{HOST}:{port}"
        finally:
            os.killpg(process.pid, 15)


def check(
    held: Held, root: Path, killed: Callable[[str, Path], None], finished: Callable[[str, Path], str]
) -> None:
    """Kill a training and let it go on; look at what its tracker holds of it."""
    killed("mlflow", root)
    assert held.points("loss") == STEPS[:26]
    assert held.ask("SELECT run_uuid FROM runs") == [(mlflow_run(root).get("run_id"),)]
    state = finished("mlflow", root)
    assert state == finished("nothing", root.with_name("undisturbed"))
    assert len(held.ask("SELECT run_uuid FROM runs")) == 1
    assert held.points("loss") == STEPS
    assert held.points("unbroken/checkpoint") == held.points("unbroken/save_seconds") == SAVED
    assert held.points("unbroken/restart") == [CHECKPOINT]
    tags = dict(held.ask("SELECT key, value FROM tags"))
    assert tags["unbroken.run"] == str(root / "run")
    (line,) = [text for name, text in tags.items() if name.startswith("unbroken.restart.")]
    assert "goes on at step 20" in line


@pytest.mark.exactness
def test_mlflow_goes_on_in_one_run_that_has_each_step_once_and_marks(tmp_path: Path, store: str) -> None:
    libraries = ("mlflow", "mlflow.store.tracking.sqlalchemy_store")
    with closing(Forked(*libraries, variables={**QUIET, "MLFLOW_TRACKING_URI": store})) as forked:
        check(Held(tmp_path / "mlflow.db"), tmp_path / "run", forked.killed, forked.finished)


@pytest.mark.exactness
def test_a_server_of_mlflow_holds_the_same_and_is_not_asked_at_each_step_what_stands_there(
    tmp_path: Path, server: str
) -> None:
    def kill(kind: str, root: Path) -> None:
        killed(kind, root, variables={**QUIET, "MLFLOW_TRACKING_URI": server})

    def finish(kind: str, root: Path) -> str:
        return finished(kind, root, variables={**QUIET, "MLFLOW_TRACKING_URI": server})[0]

    check(
        Held(tmp_path / "mlflow.db"),
        tmp_path / "run",
        kill,
        finish,
    )
    asked = (tmp_path / "server.log").read_text()
    assert "metrics/get-history" not in asked
    assert 2 <= asked.count("/mlflow/runs/get?") < 10, "once a start, and what MLflow asks for itself"


UNANSWERED = """
import random, sys
from unbroken.adapters.trackers.mlflow import MlflowRun
place = MlflowRun("abc")
place.begin(step=0, segment=0)
random.seed(7)
before = random.getstate()
place.began("runs/ppo")
assert random.getstate() == before, "it has drawn"
"""


@pytest.mark.exactness
def test_a_server_that_does_not_answer_has_nothing_drawn_from_the_training_s_generator(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    class Refuses(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(503 if len(asked) < 4 else 200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    with ThreadingHTTPServer((HOST, 0), Refuses) as refuses:
        Thread(target=refuses.serve_forever, args=(0.05,), daemon=True).start()
        variables = {
            "MLFLOW_TRACKING_URI": f"http://{HOST}:{refuses.server_port}",
            "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
            **QUIET,
        }
        subprocess.run([sys.executable, "-c", UNANSWERED], env=environment(variables), check=True)
        refuses.shutdown()
    assert len(asked) == 4
