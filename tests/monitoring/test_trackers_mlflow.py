"""MLflow, with the client as it is: a store in a file, and a server of its own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.prometheus import HOST, free_port
from tests.monitoring.tracking import CHECKPOINT, TOTAL, finished, killed, until
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
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5) as answer:
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


def check(uri: str, root: Path) -> None:
    """Kill a training and let it go on; look at what its tracker holds of it."""
    held = Held(root.with_name("mlflow.db"))
    killed("mlflow", root, lambda: None, MLFLOW_TRACKING_URI=uri, **QUIET)
    assert held.points("loss") == STEPS[:26]
    assert held.ask("SELECT run_uuid FROM runs") == [(mlflow_run(root).get("run_id"),)]
    state, said = finished("mlflow", root, MLFLOW_TRACKING_URI=uri, **QUIET)
    assert state == finished("nothing", root.with_name("undisturbed"))[0]
    assert len(held.ask("SELECT run_uuid FROM runs")) == 1, said
    assert held.points("loss") == STEPS
    assert held.points("unbroken/checkpoint") == held.points("unbroken/save_seconds") == SAVED
    assert held.points("unbroken/restart") == [CHECKPOINT]
    tags = dict(held.ask("SELECT key, value FROM tags"))
    assert tags["unbroken.run"] == str(root / "run")
    (line,) = [text for name, text in tags.items() if name.startswith("unbroken.restart.")]
    assert "goes on at step 20" in line


def test_mlflow_goes_on_in_one_run_that_has_each_step_once_and_marks(tmp_path: Path, store: str) -> None:
    check(store, tmp_path / "run")


@pytest.mark.exactness
def test_a_server_of_mlflow_holds_the_same(tmp_path: Path, server: str) -> None:
    check(server, tmp_path / "run")
