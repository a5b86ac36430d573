"""MLflow, with the client as it is: a store in a file, and a server of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.prometheus import HOST, free_port
from tests.monitoring.tracking import CHECKPOINT, TOTAL, finished, killed, until
from unbroken.errors import ConfigError
from unbroken.trackers import log_mlflow, mlflow_run

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library's own, at its import
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "GIT_PYTHON_REFRESH": "quiet"}
STEPS = list(range(TOTAL))
SAVED = [0, 10, 20, 30, 40]


@pytest.fixture(scope="module")
def library() -> Any:
    if os.environ.get("CI") != "true":
        pytest.importorskip("mlflow", exc_type=ImportError)
    os.environ.update(QUIET)
    return import_module("mlflow")


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
def server(library: Any, tmp_path: Path, store: str) -> Iterator[str]:
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


def check(library: Any, uri: str, root: Path) -> None:
    """Kill a training and let it go on; look at what its tracker holds of it."""
    killed("mlflow", root, lambda: None, MLFLOW_TRACKING_URI=uri, **QUIET)
    client = library.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs(["0"])
    first = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
    assert first == STEPS[:26]
    assert mlflow_run(root) == {"run_id": run.info.run_id}
    state, _ = finished("mlflow", root, MLFLOW_TRACKING_URI=uri, **QUIET)
    assert state == finished("nothing", root.with_name("undisturbed"))[0]
    (run,) = client.search_runs(["0"])

    def points(name: str) -> list[int]:
        return [point.step for point in client.get_metric_history(run.info.run_id, name)]

    assert points("loss") == STEPS
    assert points("unbroken/checkpoint") == points("unbroken/save_seconds") == SAVED
    assert points("unbroken/restart") == [CHECKPOINT]
    assert run.data.tags["unbroken.run"] == str(root / "run")
    (line,) = [text for name, text in run.data.tags.items() if name.startswith("unbroken.restart.")]
    assert "goes on at step 20" in line


def test_mlflow_goes_on_in_one_run_that_has_each_step_once_and_marks(
    library: Any, tmp_path: Path, store: str
) -> None:
    check(library, store, tmp_path / "run")


@pytest.mark.exactness
def test_a_server_of_mlflow_holds_the_same(library: Any, tmp_path: Path, server: str) -> None:
    check(library, server, tmp_path / "run")


def test_to_log_without_a_run_is_refused_in_a_sentence(library: Any) -> None:
    with pytest.raises(ConfigError, match="No run of MLflow is active"):
        log_mlflow({"loss": 1.0}, step=0)
