"""Which directory a logger of Lightning's goes on in, which of its steps are void, and what a tracker is not given twice."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger

from unbroken.adapters.lightning import session
from unbroken.adapters.lightning.loggers import Loggers
from unbroken.adapters.trackers.once import HeldByWandb
from unbroken.capture.hooks import Hook
from unbroken.engine.faults import EndOfProcess, FaultKind
from unbroken.engine.recovery import RecoveryPlan, Tier
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.engine.trackers.trackers import TrackerWarning
from unbroken.lightning import CheckpointCallback

from .children import HERE
from .fits import Bar, Cut, quiet
from .test_tracker_loggers import rows, shown
from .trainings import Regression, seed

pytestmark = quiet
BATCHES = 6


class Logs(Regression):
    """Logs each batch; with a `scale`, something of its own in other steps."""

    scale = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("each", loss)
        for logger in self.loggers:
            if self.scale and isinstance(logger, TensorBoardLogger):
                logger.experiment.add_scalar("own", 1.0, self.global_step * self.scale)
        return loss


def fit(root: Path, *used: Any, cut: int | None = None, first: bool = True, scale: int = 0) -> Any:
    """Train as a process does that has just started, or goes on to a further training."""
    if first:
        session._finished.clear()
    seed()
    ours = CheckpointCallback(root, job="job", every=4, keep_last=1000)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=list(used), max_epochs=2, log_every_n_steps=1, enable_model_summary=False,
        num_sanity_val_steps=0, callbacks=[ours, Bar(ours, cut)],
    )  # fmt: skip
    module = Logs()
    module.scale = scale
    with suppress(Cut):
        trainer.fit(module)
    return trainer


def board(path: Path, **options: Any) -> TensorBoardLogger:
    return TensorBoardLogger(path, name="board", **options)


def table(path: Path, **options: Any) -> CSVLogger:
    return CSVLogger(path, name="table", **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_training_of_a_script_keeps_a_directory_of_its_own(tmp_path: Path) -> None:
    for cut in (5, None):
        fit(tmp_path / "run", board(tmp_path), table(tmp_path))
        fit(tmp_path / "run", board(tmp_path), table(tmp_path), cut=cut, first=False)
    assert names(tmp_path / "board") == names(tmp_path / "table") == ["version_0", "version_1"]
    for version in ("version_0", "version_1"):
        assert shown(tmp_path / "board" / version)["each"] == list(range(2 * BATCHES))
        steps = [
            int(row["step"]) for row in rows(tmp_path / "table" / version / "metrics.csv") if row["each"]
        ]
        assert steps == list(range(2 * BATCHES))


def test_a_directory_that_the_script_names_is_the_one(tmp_path: Path) -> None:
    fit(tmp_path / "run", board(tmp_path, version="a"), table(tmp_path, version=7), cut=5)
    fit(tmp_path / "run", board(tmp_path, version="b"), table(tmp_path, version=20))
    assert names(tmp_path / "board") == ["a", "b"]
    assert names(tmp_path / "table") == ["version_20", "version_7"]
    assert shown(tmp_path / "board" / "b")["each"] == list(range(4, 2 * BATCHES))


@pytest.mark.parametrize("order", [1, -1], ids=["board first", "table first"])
def test_loggers_of_one_name_go_back_each_to_its_own(tmp_path: Path, order: int) -> None:
    def both() -> list[Any]:
        return [TensorBoardLogger(tmp_path), CSVLogger(tmp_path)][::order]

    fit(tmp_path / "run", *both(), cut=5)
    first = names(tmp_path / "lightning_logs")
    for cut in (7, 9, None):
        fit(tmp_path / "run", *both(), cut=cut)
        assert names(tmp_path / "lightning_logs") == first
    (metrics,) = (tmp_path / "lightning_logs").glob("*/metrics.csv")
    assert [int(row["step"]) for row in rows(metrics) if row["each"]] == list(range(2 * BATCHES))
    (events,) = {path.parent for path in (tmp_path / "lightning_logs").glob("*/events.*")}
    assert shown(events)["each"] == list(range(2 * BATCHES))


def test_a_logger_that_writes_elsewhere_now_begins_there(tmp_path: Path) -> None:
    fit(tmp_path / "run", board(tmp_path / "one"), cut=5)
    fit(tmp_path / "run", board(tmp_path / "two"))
    assert names(tmp_path / "two" / "board") == ["version_0"]
    assert shown(tmp_path / "two" / "board" / "version_0")["each"] == list(range(4, 2 * BATCHES))


def test_nothing_that_was_logged_before_the_checkpoint_is_void_in_whatever_steps(tmp_path: Path) -> None:
    fit(tmp_path / "run", board(tmp_path), cut=7, scale=32)
    fit(tmp_path / "run", board(tmp_path), scale=32)
    curves = shown(tmp_path / "board" / "version_0")
    assert curves["own"] == [32 * step for step in range(2 * BATCHES)]
    # Two ways of counting in one file: what the other one has voided too early would be lost.
    assert sorted(set(curves["each"])) == list(range(2 * BATCHES))


def test_whoever_holds_the_writer_writes_where_the_logger_does(tmp_path: Path) -> None:
    fit(tmp_path / "run", board(tmp_path), cut=5)
    again = board(tmp_path)
    writer: Any = again.experiment
    writer.add_text("script", "what it was called with")
    fit(tmp_path / "run", again)
    writer.add_scalar("after", 1.0, 99)
    writer.close()
    assert names(tmp_path / "board") == ["version_0"]
    assert shown(tmp_path / "board" / "version_0")["after"] == [99]


def test_what_a_script_logs_before_it_trains_stays(tmp_path: Path) -> None:
    for cut in (2, None):  # before the second checkpoint
        logger = board(tmp_path, version="one")
        logger.log_hyperparams({"lr": 0.1}, {"score": 1.0})
        fit(tmp_path / "run", logger, cut=cut)
    assert shown(tmp_path / "board" / "one")["score"] == [0, 0]
    assert shown(tmp_path / "board" / "one")["each"] == [0, *range(2 * BATCHES)]


def test_what_a_model_checkpoint_has_written_is_written_again_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fit(tmp_path / "run", TensorBoardLogger("."), cut=7)
    assert names(tmp_path / "lightning_logs" / "version_0" / "checkpoints") == ["epoch=0-step=6.ckpt"]
    fit(tmp_path / "run", TensorBoardLogger("."))
    assert names(tmp_path / "lightning_logs" / "version_0" / "checkpoints") == ["epoch=1-step=12.ckpt"]


def test_no_hook_stays(tmp_path: Path) -> None:
    for cut in (5, None):
        used = board(tmp_path), table(tmp_path)
        trainer = fit(tmp_path / "run", *used, cut=cut)
        held = [*used, *(logger.experiment for logger in used)]
        assert trainer.loggers == list(used)
        assert not any(isinstance(value, Hook) for one in held for value in vars(one).values())


def test_rows_of_a_new_header_come_back_in_it(tmp_path: Path) -> None:
    class Late(Callback):
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.global_step > 5:
                pl_module.log("late", 1.0)

    for root, cuts in (("U", (None,)), ("R", (7, None))):
        for cut in cuts:
            session._finished.clear()
            seed()
            ours = CheckpointCallback(tmp_path / root / "run", job="job", every=4, keep_last=1000)
            trainer: Any = lightning.Trainer(
                accelerator="cpu", logger=table(tmp_path / root), max_epochs=2, log_every_n_steps=1,
                enable_model_summary=False, enable_checkpointing=False, callbacks=[ours, Bar(ours, cut), Late()],
            )  # fmt: skip
            with suppress(Cut):
                trainer.fit(Logs())
    texts = [(tmp_path / root / "table" / "version_0" / "metrics.csv").read_bytes() for root in ("U", "R")]
    assert texts[0] == texts[1]
    assert "late" in next(csv.reader(texts[0].decode().splitlines()))


@pytest.mark.exactness
def test_of_several_processes_the_first_goes_on_in_its_files(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.adapters.lightning.tracker_ranks_script",
        str(tmp_path),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([*command, "5"], cwd=HERE, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    subprocess.run(command, cwd=HERE, env=environment, capture_output=True, check=True)
    assert names(tmp_path / "lightning_logs") == names(tmp_path / "csv") == ["version_0"]
    curves = shown(tmp_path / "lightning_logs" / "version_0")
    assert curves["each"] == list(range(BATCHES))  # each process has half of the data
    assert curves["unbroken/restart"] == [4]
    steps = [int(row["step"]) for row in rows(tmp_path / "csv" / "version_0" / "metrics.csv") if row["each"]]
    assert steps == list(range(BATCHES))


class Run:
    """A run of W&B as far as it is asked."""

    def __init__(self, **summary: Any) -> None:
        self.resumed, self.summary = True, summary


@pytest.mark.parametrize(
    ("rows", "logged"),
    [
        ([(8, 1.0), (9, 2.0), (10, 3.0), (9, 4.0)], [(10, 3.0), (9, 4.0)]),
        # Of the newest step, a row that is not the one that stands there is another one.
        ([(8, 1.0), (9, 7.0), (9, 2.0)], [(9, 7.0), (9, 2.0)]),
        # The newest row counts epochs, and the others batches: nobody can tell, so they are logged.
        ([(800, 1.0), (9, 2.0)], [(800, 1.0), (9, 2.0)]),
    ],
)
def test_what_wandb_holds_is_left_out_until_something_is_new(
    rows: list[tuple[int, float]], logged: list[tuple[int, float]]
) -> None:
    held = HeldByWandb(Run(axis=9, loss=2.0), axis="axis")
    assert [(step, loss) for step, loss in rows if held.new_of({"loss": loss}, step)] == logged


def test_of_a_run_of_wandb_that_begins_nothing_is_left_out() -> None:
    run = Run(axis=9)
    run.resumed = False
    assert HeldByWandb(run, axis="axis").new_of({"loss": 1.0}, 3) == {"loss": 1.0}


REPORT = ResumeReport(
    tier=Tier.NEWEST,
    fault=EndOfProcess(FaultKind.SOFT, "killed"),
    step=5,
    plan=RecoveryPlan(()),
    position="step",
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_where_mlflow_cannot_be_asked_what_it_holds_it_is_said_and_all_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what mlflow's own libraries say of each other nothing matters here."""
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    pytest.importorskip("mlflow")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    known = MLFlowLogger(tracking_uri=address)
    known.log_metrics({"loss": 1.0}, 3)
    for run, hooked in ((known.run_id, True), ("0" * 32, False)):
        logger = MLFlowLogger(tracking_uri=address, run_id=run)
        trainer = lightning.Trainer(accelerator="cpu", logger=logger, enable_checkpointing=False)
        loggers = Loggers(trainer, Settings(root=tmp_path / "runs"), segment=0)
        said = nullcontext() if hooked else pytest.warns(TrackerWarning, match="MLFlowLogger .* logged twice")
        with said:
            loggers.begun(REPORT)
        assert isinstance(vars(logger).get("log_metrics"), Hook) is hooked
        if hooked:
            logger.log_metrics({"loss": 5.0, "new": 6.0}, 3)
            assert known.experiment.get_run(run).data.metrics == {"loss": 1.0, "new": 6.0}
        loggers.release()
        assert "log_metrics" not in vars(logger)
