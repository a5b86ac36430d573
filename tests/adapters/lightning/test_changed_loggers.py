"""A training that goes on with other loggers than before: what only one side has is left out and said, and nothing else changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from unbroken.adapters.lightning import session
from unbroken.lightning import CheckpointCallback

from .fits import Bar, Cut, quiet
from .test_tracker_directories import BATCHES, Logs
from .test_tracker_loggers import CHECKPOINT, STEPS, Fits, rows, shown
from .trainings import seed

pytestmark = quiet
END = 2 * BATCHES
NEW, GONE = "was not logged to before, and begins here", "was logged to, and the program has it no more"
MAKES: dict[str, Any] = {
    "board": lambda path: TensorBoardLogger(path, name="board"),
    "table": lambda path: CSVLogger(path, name="table"),
    "other": lambda path: CSVLogger(path, name="other"),
    "one": lambda path: TensorBoardLogger(path, name="board", version="one"),
}


def fit(path: Path, used: str, cut: int | None = None, *, resume: Any = "auto") -> tuple[str, list[float]]:
    """Train as a process does that has just started; return what it says at its start, and its weights at its end."""
    session._finished.clear()
    seed()
    ours = CheckpointCallback(path / "run", job="job", every=4, keep_last=1000, resume=resume)
    trainer: Any = lightning.Trainer(
        accelerator="cpu", logger=[MAKES[name](path) for name in used.split()] or False, max_epochs=2,
        log_every_n_steps=1, enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=path,
        callbacks=[ours, Bar(ours, cut)],
    )  # fmt: skip
    module = Logs()
    with suppress(Cut):
        trainer.fit(module)
    assert ours.report is not None
    return ours.report.text, torch.nn.utils.parameters_to_vector(module.parameters()).tolist()


def logged(file: Path) -> list[int]:
    return [int(row["step"]) for row in rows(file / "metrics.csv") if row["each"]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return fit(tmp_path_factory.mktemp("U"), "")[1]


@pytest.mark.parametrize(
    ("before", "now", "new", "gone"),
    [
        ("board", "board table", ["CSVLogger"], []),
        ("table", "board table", ["TensorBoardLogger"], []),
        ("board table", "board", [], ["CSVLogger"]),
        ("board table", "table", [], ["TensorBoardLogger"]),
        ("table", "table other", ["CSVLogger#2"], []),
        ("table", "other table", ["CSVLogger#2"], []),
        ("table other", "other", [], ["CSVLogger"]),
        ("board", "table", ["CSVLogger"], ["TensorBoardLogger"]),
        ("", "table", ["CSVLogger"], []),
        ("board table", "", [], ["TensorBoardLogger", "CSVLogger"]),
        ("table other", "other table", [], []),
    ],
)
def test_a_run_goes_on_with_other_loggers(
    before: str, now: str, new: list[str], gone: list[str], undisturbed: list[float], tmp_path: Path
) -> None:
    fit(tmp_path, before, cut=7)
    said, weights = fit(tmp_path, now)
    assert weights == undisturbed
    for words, names in ((NEW, new), (GONE, gone)):
        assert said.count(words) == len(names)
        for name in names:
            assert f"{name}: {words}" in said
    for kind in ("table", "other"):
        if kind in now.split():
            begun = 0 if kind in before.split() else 4
            assert logged(tmp_path / kind / "version_0") == list(range(begun, END))
        elif kind in before.split():
            assert logged(tmp_path / kind / "version_0") == list(range(7)), "left as it was"
    if "board" in now.split():
        begun = 0 if "board" in before.split() else 4
        assert shown(tmp_path / "board" / "version_0")["each"] == list(range(begun, END))


def test_of_each_change_only_the_next_start_tells_and_what_comes_back_goes_on_with_what_is_there(
    undisturbed: list[float], tmp_path: Path
) -> None:
    fit(tmp_path, "one table", cut=5)
    assert GONE in fit(tmp_path, "table", cut=5)[0]  # from 4; leaves a checkpoint at 8
    said, _ = fit(tmp_path, "table", cut=1)
    assert GONE not in said and NEW not in said
    said, weights = fit(tmp_path, "one table")
    assert said.count(NEW) == 1 and f"TensorBoardLogger: {NEW}" in said and GONE not in said
    assert weights == undisturbed
    assert shown(tmp_path / "board" / "one")["each"] == [*range(5), *range(8, END)]
    assert logged(tmp_path / "table" / "version_0") == list(range(END))
    assert [path.name for path in (tmp_path / "table").iterdir()] == ["version_0"]


def test_what_a_new_logger_has_after_the_checkpoint_of_a_start_is_logged_once(
    undisturbed: list[float], tmp_path: Path
) -> None:
    """It is found by a newer checkpoint: all that its directory has is of steps that come again."""
    fit(tmp_path, "", cut=5)
    fit(tmp_path, "board table", cut=6)
    assert logged(tmp_path / "table" / "version_0") == list(range(4, 10))
    assert fit(tmp_path, "board table", resume=4)[1] == undisturbed
    assert logged(tmp_path / "table" / "version_0") == list(range(4, END))
    assert shown(tmp_path / "board" / "version_0")["each"] == list(range(4, END))


@pytest.fixture(scope="module")
def fits() -> Iterator[Fits]:
    with closing(Fits()) as started:
        yield started


def test_a_killed_fit_goes_on_with_other_loggers_to_the_same_end(fits: Fits, tmp_path: Path) -> None:
    undisturbed = fits.finished("nothing", tmp_path / "U")
    fits.killed("nothing", tmp_path / "R")
    shutil.copytree(tmp_path / "R", tmp_path / "C")
    assert fits.finished("files", tmp_path / "R") == undisturbed
    assert fits.finished("files", tmp_path / "C", "generators") != undisturbed, (
        "left cold, it draws other values"
    )
    assert NEW in (tmp_path / "R" / "log").read_text()
    drawn = [int(row["step"]) for row in rows(tmp_path / "R/logs/csv/version_0/metrics.csv") if row["drawn"]]
    assert drawn == list(range(CHECKPOINT, len(STEPS)))
    assert shown(tmp_path / "R/logs/lightning_logs/version_0")["drawn"] == drawn

    fits.killed("files", tmp_path / "L")
    assert fits.finished("nothing", tmp_path / "L") == undisturbed
    said = (tmp_path / "L" / "log").read_text()
    assert f"CSVLogger: {GONE}" in said and f"TensorBoardLogger: {GONE}" in said
