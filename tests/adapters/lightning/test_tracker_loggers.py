"""Lightning's own loggers in a training that is killed and goes on: one curve, each step once, and marks of what happened.

U is undisturbed and logs nowhere, so that it shows too whether anybody draws from a training's generators; R is killed and goes on;
C does so without what a checkpoint tells of loggers, and has to leave another curve.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightning")

from exactness.forked import Forking
from tests.monitoring.tracking import until
from tests.monitoring.wandb_server import WandbServer
from unbroken.trackers import mlflow_run, wandb_run

STEPS = list(range(18))
SAVED = [0, 5, 10, 15, 18]
PAUSE, CHECKPOINT = 13, 10
"""In the third epoch, after rows that the newest checkpoint does not know of, one of them of an epoch's end."""


class Fits:
    """Fits in processes of their own, which one forks that has imported everything."""

    def __init__(self, *libraries: str, **variables: str) -> None:
        self._process = Forking(
            "-m", "tests.adapters.lightning.tracker_fits", *libraries, environment=variables
        )
        self._asking = ThreadPoolExecutor(1)

    def killed(self, kind: str, at: Path, ready: Callable[[], object] = lambda: None) -> None:
        """Have a training killed by SIGKILL, once `ready` has returned."""
        ended, paused = self._asking.submit(self._run, kind, at, pause=PAUSE), at / "paused"
        until(lambda: paused.exists() or ended.done())
        assert not ended.done(), (at / "log").read_text()
        try:
            ready()
        finally:
            os.kill(int(paused.read_text()), signal.SIGKILL)
        assert ended.result() == -signal.SIGKILL

    def finished(self, kind: str, at: Path, *cold: str) -> Any:
        """Have a training go on to its end; return what it has come to."""
        assert self._run(kind, at, cold=cold) == 0, (at / "log").read_text()
        return json.loads((at / "ended").read_text())

    def _run(self, kind: str, at: Path, **more: Any) -> int:
        at.mkdir(exist_ok=True)
        return self._process.run(json.dumps({"kind": kind, "at": str(at), **more}))

    def close(self) -> None:
        self._process.close()
        self._asking.shutdown()


@pytest.fixture(scope="module")
def fits() -> Iterator[Fits]:
    with closing(Fits()) as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(fits: Fits, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a training that logs nowhere comes to."""
    return fits.finished("nothing", tmp_path_factory.mktemp("undisturbed"))


def logged_of(undisturbed: Any) -> list[tuple[int, float]]:
    """Return what a logger is given of it, by step: Lightning rounds."""
    return list(enumerate(float(np.float32(drawn)) for drawn in undisturbed[0]))


def shown(folder: Path) -> dict[str, list[int]]:
    """Return at which steps TensorBoard shows something."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board: Any = module.EventAccumulator(str(folder))
    board.Reload()
    tags = board.Tags()
    found = {tag: [event.step for event in board.Scalars(tag)] for tag in tags["scalars"]}
    return found | {tag: [event.step for event in board.Tensors(tag)] for tag in tags["tensors"]}


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def of(held: list[dict[str, str]], name: str) -> list[tuple[int, float]]:
    return [(int(row["step"]), float(row[name])) for row in held if row[name]]


@pytest.mark.parametrize(
    ("kind", "board", "file"),
    [
        ("files", "lightning_logs/version_0", "csv/version_0"),
        pytest.param("named", "lightning_logs/one", "lightning_logs/one", marks=pytest.mark.exactness),
    ],
)
def test_a_killed_fit_goes_on_in_its_files(
    kind: str, board: str, file: str, fits: Fits, undisturbed: Any, tmp_path: Path
) -> None:
    assert fits.finished(kind, tmp_path / "U") == undisturbed
    fits.killed(kind, tmp_path / "R")
    whole = rows(tmp_path / "U" / "logs" / file / "metrics.csv")
    before = rows(tmp_path / "R" / "logs" / file / "metrics.csv")
    assert before == whole[: len(before)]
    assert int(before[-1]["step"]) > CHECKPOINT, "there is something to be left out"
    shutil.copytree(tmp_path / "R", tmp_path / "C")
    assert fits.finished(kind, tmp_path / "R") == undisturbed
    assert fits.finished(kind, tmp_path / "C", "position/loggers") == undisturbed

    assert of(whole, "drawn") == logged_of(undisturbed)
    assert rows(tmp_path / "R" / "logs" / file / "metrics.csv") == whole
    assert rows(tmp_path / "C" / "logs" / file / "metrics.csv") != whole, "left cold, it changes nothing"
    curves = shown(tmp_path / "R" / "logs" / board)
    assert curves["drawn"] == STEPS
    assert curves["validated"] == [5, 11, 17]
    assert curves["unbroken/checkpoint"] == SAVED
    assert curves["unbroken/restart"] == curves["unbroken/restarts/text_summary"] == [CHECKPOINT]
    assert shown(tmp_path / "C" / "logs" / board)["drawn"] != STEPS, "left cold, it changes nothing"
    for logs in ("lightning_logs", "csv"):
        assert len(list((tmp_path / "R" / "logs" / logs).glob("*"))) == (
            logs == "lightning_logs" or kind == "files"
        )


@pytest.fixture
def server() -> Iterator[WandbServer]:
    assert find_spec("wandb") or os.environ.get("CI") != "true", "wandb is not installed"
    if not find_spec("wandb"):
        pytest.skip("wandb is not installed")
    with closing(WandbServer()) as started:
        yield started


@pytest.mark.exactness
def test_wandb_has_each_step_once_and_marks(undisturbed: Any, server: WandbServer, tmp_path: Path) -> None:
    def logged() -> list[tuple[int, float]]:
        held = next(iter(server.rows.values()), [])
        return [(row["trainer/global_step"], row["drawn"]) for row in held if "drawn" in row]

    def arrived() -> bool:
        return [step for step, _ in logged()] == STEPS[:PAUSE] and all(
            held.get("trainer/global_step") == PAUSE - 1 for held in server.summary.values()
        )

    online = {
        "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online", "WANDB_SILENT": "true",
        "OTEL_SDK_DISABLED": "true", "WANDB_ERROR_REPORTING": "false",
    }  # fmt: skip
    with closing(Fits("wandb", **online)) as tracked:
        tracked.killed("wandb", tmp_path / "R", lambda: until(arrived))
        assert tracked.finished("wandb", tmp_path / "R") == undisturbed
    ((name, held),) = server.rows.items()
    assert wandb_run(tmp_path / "R" / "runs", job="job") == {"id": name, "resume": "allow"}
    assert logged() == logged_of(undisturbed)
    assert [row["trainer/global_step"] for row in held if "validated" in row] == [5, 11, 17]
    assert [row["unbroken/checkpoint"] for row in held if "unbroken/checkpoint" in row] == SAVED
    assert [row["unbroken/restart"] for row in held if "unbroken/restart" in row] == [CHECKPOINT]
    assert "goes on at step 10" in server.summary[name]["unbroken/last_restart"]


@pytest.mark.exactness
def test_mlflow_has_each_point_once_and_marks(undisturbed: Any, tmp_path: Path) -> None:
    assert int(metadata.version("mlflow-skinny").partition(".")[0]) >= 3
    quietly = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "GIT_PYTHON_REFRESH": "quiet"}
    with closing(Fits("mlflow", **quietly)) as tracked:
        tracked.killed("mlflow", tmp_path / "R")
        assert tracked.finished("mlflow", tmp_path / "R") == undisturbed
    with closing(sqlite3.connect(tmp_path / "R" / "logs" / "mlflow.db")) as database:

        def points(name: str) -> list[tuple[int, float]]:
            asked = "SELECT step, value FROM metrics WHERE key = ? ORDER BY step, timestamp"
            return [(int(step), value) for step, value in database.execute(asked, (name,))]

        assert points("drawn") == logged_of(undisturbed)
        assert [step for step, _ in points("validated")] == [5, 11, 17]
        assert points("unbroken/checkpoint") == [(step, step) for step in SAVED]
        assert points("unbroken/restart") == [(CHECKPOINT, CHECKPOINT)]
        (run,) = database.execute("SELECT run_uuid FROM runs").fetchall()
    assert mlflow_run(tmp_path / "R" / "runs", job="job") == {"run_id": run[0]}
