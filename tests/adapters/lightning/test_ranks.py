"""Two processes that train together under Lightning's DDP, over gloo. See `test_exactness` for U, R and C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import lightning

from unbroken.adapters.lightning.ranks import check_ranks
from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository

from .children import HERE, Runner, differences
from .fits import quiet

DDP = {"strategy": "ddp", "devices": 2, "max_epochs": 3}
SCRIPT = Path(__file__).parent / "launched_script.py"


@pytest.fixture(scope="module")
def first() -> Iterator[Runner]:
    runner = Runner(1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def second() -> Iterator[Runner]:
    runner = Runner(2)
    yield runner
    runner.close()


class Trainings:
    """Trainings in one directory. All write Lightning's own files to the same place, one after the other."""

    def __init__(self, tmp_path: Path, **order: Any) -> None:
        self.path = tmp_path
        self.files = tmp_path / "files"
        options = {"directory": str(self.files), **order.pop("options", {})}
        self._order = {
            "case": "parallel", "every": 5, "trainer": DDP, "ranks": 2, "log": str(tmp_path / "log"),
            **order, "options": options,
        }  # fmt: skip

    def run(self, runner: Runner, name: str, **more: Any) -> Any:
        order = {**self._order, "root": str(self.path / name), "out": str(self.path / f"{name}."), **more}
        return runner.run(**order)

    def copy(self, name: str, other: str) -> None:
        """Copy what a training has left, for another one to go on with."""
        shutil.copytree(self.path / name, self.path / other)

    def set_files_aside(self, name: str) -> None:
        self.files.rename(self.path / f"files of {name}")

    def bring_files_of(self, name: str) -> None:
        shutil.rmtree(self.files, ignore_errors=True)
        shutil.copytree(self.path / f"files of {name}", self.files)

    @property
    def said(self) -> str:
        return (self.path / "log").read_text()

    def result(self, name: str, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / f"{name}.{rank}").read_text())
        found.pop("report")
        return found

    def results(self, name: str) -> list[dict[str, Any]]:
        return [self.result(name, rank) for rank in range(2)]

    def history(self, name: str) -> list[tuple[int, str]]:
        return [(commit.step, commit.position) for commit in reversed(self._repository(name).commits())]

    def components(self, name: str) -> set[str]:
        repository = self._repository(name)
        documents = repository.manifest(repository.commits()[0]).documents
        return {entry.component for entry in documents.values()}

    def _repository(self, name: str) -> Repository:
        return Repository.open(self.path / name, "job")


@dataclass(frozen=True)
class Case:
    """Rank `dies` is killed once it has trained on `kill` batches. Each of `cold` is left cold in a run of its own."""

    kill: int
    dies: int = 1
    every: int | dict[str, float] = 5
    cold: tuple[str, ...] = ()
    trainer: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([str(self.kill), f"rank{self.dies}", *self.trainer, *self.options])


# Killed after a file of `ModelCheckpoint` that the newest checkpoint does not know of.
CASES = [Case(14, cold=("module/buffer", "optimizers", "passes"))]
FREELY = {"seconds": 1e-6}
MORE = [
    Case(9, dies=0, every=4, cold=("generators", "module/env", "module/rng")),
    Case(0),
    Case(6, every=1, cold=("generators",)),
    Case(7, every=3, trainer={"max_epochs": 4}, cold=("schedulers",)),
    Case(13, every=FREELY),
    Case(9, every=FREELY, trainer={"accumulate_grad_batches": 4}, cold=("gradients",)),
    Case(8, options={"batch_norm": True}, cold=("module/_modules/net/_modules/3/_buffers",)),
    Case(8, options={"own_sampler": True}, cold=("passes",)),
]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.exactness) for case in MORE)], ids=str
)
def test_a_killed_rank_changes_nothing(case: Case, first: Runner, second: Runner, tmp_path: Path) -> None:
    """Of loaders too (G7): what is left of the second epoch, and the third, are the samples that each rank would have had."""
    runs = Trainings(tmp_path, every=case.every, trainer={**DDP, **case.trainer}, options=case.options)
    assert runs.run(first, "U") == [0, 0], runs.said
    runs.set_files_aside("U")
    ended = runs.run(first, "R", of={str(case.dies): {"kill": case.kill}})
    assert ended[case.dies] == -signal.SIGKILL, runs.said
    assert ended[1 - case.dies] == 1, "the other one cannot go on alone"
    if not runs.files.exists():
        runs.files.mkdir()
    runs.set_files_aside("R")
    for number in range(len(case.cold)):
        runs.copy("R", f"C{number}")
    runs.bring_files_of("R")
    assert runs.run(second, "R") == [0, 0], runs.said
    assert runs.said.count("goes on at step") == 1, "rank 0 says it for all"

    assert runs.results("R") == runs.results("U")
    assert differences(tmp_path / "U", tmp_path / "R") == []
    assert names(runs.files) == names(tmp_path / "files of U")
    assert runs.result("U", 0)["seen"] != runs.result("U", 1)["seen"]
    assert runs.result("U", 0)["buffer"] != runs.result("U", 1)["buffer"]
    for number, part in enumerate(case.cold):
        runs.bring_files_of("R")
        assert runs.run(second, f"C{number}", cold=[part]) == [0, 0], runs.said
        assert runs.results(f"C{number}") != runs.results("U"), f"{part} left cold changes nothing"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_happens_to_one_rank_happens_to_all(first: Runner, tmp_path: Path) -> None:
    runs = Trainings(tmp_path)
    assert runs.run(first, "U") == [0, 0], runs.said
    assert {"policy_weights", "optimizer_states", "module_state@rank1", "replay_buffer@rank1"} <= (
        runs.components("U")
    )

    # A finished run says so, once, and trains no more.
    before, history = runs.results("U"), runs.history("U")
    assert history == [(0, "start"), (5, "step"), (10, "step"), (15, "step"), (18, "end")]
    assert runs.run(first, "U") == [0, 0], runs.said
    assert runs.said.count("had finished at step 18") == 1
    assert (runs.results("U"), runs.history("U")) == (before, history)

    runs.set_files_aside("U")

    # SIGTERM reaches one of them: both save what the batch has come to, and end.
    told = runs.run(first, "R", of={"1": {"kill": 7, "signal": signal.SIGTERM}})
    assert told == [75, 75], runs.said
    assert runs.history("R") == [(0, "start"), (5, "step"), (8, "step")]

    # So does SIGUSR1, of which Lightning does not know.
    told = runs.run(first, "R", of={"1": {"kill": 3, "signal": signal.SIGUSR1}})
    assert told == [75, 75], runs.said
    assert runs.history("R") == [(0, "start"), (5, "step"), (8, "step"), (10, "step"), (12, "step")]

    # One of them fails: so does the other, and what is committed stands.
    assert runs.run(first, "R", of={"1": {"kill": 4, "signal": None}}) == [1, 1], runs.said
    assert "ZeroDivisionError" in runs.said
    saved = [(0, "start"), (5, "step"), (8, "step"), (10, "step"), (12, "step"), (15, "step")]
    assert runs.history("R") == saved

    # Another number of processes is refused, and nothing is touched.
    alone = {**DDP, "devices": 1}
    assert runs.run(first, "R", ranks=1, trainer=alone) == [1], runs.said
    assert "StateMismatch: The number of processes was 2 and is 1" in runs.said
    assert runs.history("R") == saved

    assert runs.run(first, "R") == [0, 0], runs.said
    assert runs.results("R") == before
    assert differences(tmp_path / "U", tmp_path / "R") == []


def test_processes_that_each_fit_starts_anew_are_refused(first: Runner, tmp_path: Path) -> None:
    runs = Trainings(tmp_path)
    order: dict[str, Any] = {"case": "regression", "options": {}, "every": 5, "log": str(tmp_path / "log")}
    trainer = {"max_epochs": 1, "strategy": "ddp_fork", "devices": 2}
    assert first.run(**order, trainer=trainer, root=str(tmp_path / "U"), out=str(tmp_path / "U.")) == 1
    assert "ConfigError: This strategy starts new processes in every fit" in runs.said
    assert not (tmp_path / "U").exists()


@quiet
def test_strategies_that_keep_something_of_their_own_are_refused() -> None:
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    def trainer(strategy: Any) -> lightning.Trainer:
        return lightning.Trainer(
            strategy=strategy, devices=2, accelerator="cpu", logger=False, enable_checkpointing=False
        )

    check_ranks(trainer(DDPStrategy()))
    with pytest.raises(ConfigError, match="2 processes under ModelParallelStrategy"):
        check_ranks(trainer(ModelParallelStrategy()))
    with pytest.raises(ConfigError, match="PowerSGDState"):
        check_ranks(trainer(DDPStrategy(ddp_comm_state=PowerSGDState(None))))


@pytest.mark.exactness
def test_more_processes_than_before_are_refused(first: Runner, tmp_path: Path) -> None:
    runs = Trainings(tmp_path)
    assert runs.run(first, "R", of={"1": {"kill": 7}}) == [1, -signal.SIGKILL], runs.said
    assert runs.run(first, "R", ranks=3, trainer={**DDP, "devices": 3}) == [1, 1, 1], runs.said
    assert "The number of processes was 2 and is 3" in runs.said
    assert runs.history("R") == [(0, "start"), (5, "step")]


@pytest.mark.exactness
def test_three_processes_say_that_low_bits_differ(first: Runner, tmp_path: Path) -> None:
    runs = Trainings(tmp_path, ranks=3)
    trainer = {**DDP, "devices": 3, "max_epochs": 1}
    assert runs.run(first, "U", trainer=trainer) == [0, 0, 0], runs.said
    assert "approximate: policy_weights" in runs.said
    keeping = {**trainer, "strategy": "ddp_find_unused_parameters_true"}
    assert runs.run(first, "R", trainer=keeping) == [0, 0, 0], runs.said
    assert runs.said.count("approximate: policy_weights") == 1


@pytest.mark.exactness
def test_lightnings_own_launcher_starts_the_others(tmp_path: Path) -> None:
    def launch(name: str, *fault: int) -> int:
        command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path), name, *map(str, fault)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
        with (tmp_path / "log").open("ab") as log:
            return subprocess.run(
                command, env=environment, stdout=log, stderr=log, check=False, timeout=600
            ).returncode

    runs = Trainings(tmp_path)
    assert launch("U") == 0, runs.said
    runs.set_files_aside("U")
    assert launch("R", 1, 7, signal.SIGKILL) != 0, "rank 0 cannot go on alone"
    assert runs.history("R") == [(0, "start"), (5, "step")], runs.said
    launch("R", 0, 3, signal.SIGTERM)
    assert runs.history("R") == [(0, "start"), (5, "step"), (9, "step")], runs.said
    assert launch("R") == 0, runs.said
    assert "goes on at step 5" in runs.said
    assert runs.said.count("goes on at step 9") == 1
    assert runs.results("R") == runs.results("U")
    assert differences(tmp_path / "U", tmp_path / "R") == []
