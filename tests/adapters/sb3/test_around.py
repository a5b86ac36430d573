"""Everything around a training, killed and taken up in another process: evaluations, callbacks, logs, bars.

U is undisturbed, R is killed and goes on, C goes on with one part left cold. What R leaves on the disk is what U
leaves there, and what C leaves is not.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO

from .test_exactness import HERE, Runner, differences
from .trainings import weights

TIMES = ("time/fps", "time/time_elapsed")


class Around(Runner):
    """Another interpreter for the trainings of `around`."""

    def __init__(self, hash_seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.adapters.sb3.around"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=HERE,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"},
            text=True,
        )


@pytest.fixture(scope="module")
def one() -> Iterator[Runner]:
    runner = Around(1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def other() -> Iterator[Runner]:
    runner = Around(2)
    yield runner
    runner.close()


@dataclass(frozen=True)
class Case:
    """`kill` and `save_freq` count steps of the vector of two environments."""

    model: str
    callbacks: str
    steps: int
    kill: int
    save_freq: int
    cold: str
    shown: str
    """What of a run is another where `cold` was left as built."""
    log_interval: int | None = 1


CASES = [
    Case("ppo", "first", 384, 150, 60, "callbacks/EvalCallback", "weights"),
    Case("ppo", "last", 384, 110, 45, "callbacks/EveryNTimesteps", "marks"),
    Case("ppo", "nested", 384, 110, 45, "model/_logger", "logs"),
    Case("ppo", "impatient", 4096, 65, 45, "callbacks/EvalCallback", "steps"),
    Case("dqn", "few episodes", 1024, 100, 45, "callbacks/StopTrainingOnMaxEpisodes", "steps", 2),
    Case("dqn", "logging", 320, 100, 45, "callbacks/LogEveryNTimesteps", "logs", None),
    Case("ppo", "others", 256, 80, 45, "callbacks/Others/alone", "seen"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model}-{case.callbacks}")
def test_what_is_around_a_killed_training_ends_as_if_it_had_not_been_killed(
    case: Case, one: Runner, other: Runner, tmp_path: Path
) -> None:
    def run(runner: Runner, name: str, **more: Any) -> int:
        return ordered(case, runner, tmp_path, name, **more)

    def said() -> str:
        return (tmp_path / "log").read_text()

    assert run(one, "U") == 0, said()
    assert run(one, "R", kill=case.kill) == -9, said()
    keep(tmp_path, "R", "killed")
    assert run(other, "R") == 0, said()
    assert "goes on at step" in said()
    expected, resumed = left_by(tmp_path, "U"), left_by(tmp_path, "R")
    assert resumed == expected
    assert differences(tmp_path / "run-U", tmp_path / "run-R") == []

    keep(
        tmp_path, "killed", "R"
    )  # in the same place: TensorBoard goes on in the directory of the first start
    assert run(other, "R", cold=[case.cold]) == 0, said()
    forgot = left_by(tmp_path, "R")
    assert forgot[case.shown] != expected[case.shown], f"{case.cold} left cold changes nothing"


def ordered(case: Case, runner: Runner, folder: Path, name: str, **more: Any) -> int:
    order = {"root": str(folder / f"run-{name}"), "files": str(folder / name), **more}
    return runner.run(
        model=case.model, callbacks=case.callbacks, steps=case.steps, save_freq=case.save_freq,
        log_interval=case.log_interval, out=str(folder / f"{name}.json"), log=str(folder / "log"), **order,
    )  # fmt: skip


def keep(folder: Path, this: str, name: str) -> None:
    for tree in ("", "run-"):
        shutil.rmtree(folder / f"{tree}{name}", ignore_errors=True)
        shutil.copytree(folder / f"{tree}{this}", folder / f"{tree}{name}")


def test_a_start_that_writes_elsewhere_has_the_files_of_the_whole_run_there_and_its_time(
    one: Runner, other: Runner, tmp_path: Path
) -> None:
    case = Case("ppo", "first", 384, 165, 60, "", "")
    elsewhere = str(tmp_path / "elsewhere")
    assert ordered(case, one, tmp_path, "U") == 0
    # Half an hour before the kill; the best model was found before the checkpoint and not again after it.
    assert ordered(case, one, tmp_path, "R", kill=case.kill, aged=1800) == -9
    shutil.rmtree(tmp_path / "R")
    assert ordered(case, other, tmp_path, "R", files=elsewhere) == 0
    expected, found = left_by(tmp_path, "U"), left_by(tmp_path, "R", elsewhere)
    assert {**found, "events": expected["events"]} == expected
    assert 0 < expected["best"][1] <= 240, "the test shows nothing where the best comes after the checkpoint"
    with (tmp_path / "elsewhere/progress.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["time/time_elapsed"]]
    steps = [int(row["time/total_timesteps"]) for row in rows]
    elapsed = [int(row["time/time_elapsed"]) for row in rows]
    assert steps == [64, 128, 192, 256, 320, 384]
    assert elapsed[0] >= 1800 and elapsed == sorted(elapsed)
    assert all(int(row["time/fps"]) <= int(row["time/total_timesteps"]) / 1800 for row in rows)


def left_by(folder: Path, name: str, place: str = "") -> dict[str, Any]:
    """Return what a training left behind, without the times in it."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    files = Path(place) if place else folder / name
    logs: dict[str, Any] = {path.name: logged(path) for path in sorted(files.glob("progress.*"))}
    found["logs"] = {**logs, "log.txt": cells(files / "log.txt")}
    found["events"] = events(files)
    if (files / "evaluations.npz").exists():
        with np.load(files / "evaluations.npz") as arrays:
            found["evaluations"] = {key: arrays[key].tolist() for key in arrays.files}
        model = PPO.load(files / "best/best_model.zip", device="cpu")
        found["best"] = weights(model), model.num_timesteps
    return found


def logged(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        rows = csv.DictReader(file) if path.suffix == ".csv" else (json.loads(line) for line in file)
        return [{k: v for k, v in row.items() if k not in TIMES and v != ""} for row in rows]


def cells(path: Path) -> list[list[str]]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [line for line in lines if "|" in line and line[1] not in ("fps", "time_elapsed")]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    module: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = module.EventAccumulator(str(folder)).Reload()
    tags = [tag for tag in found.Tags()["scalars"] if tag not in TIMES and not tag.startswith("unbroken/")]
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags}
