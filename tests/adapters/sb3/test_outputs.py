"""What a training shows: log files piece by piece, logs that come and go, files that cannot be written."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Drawing
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    Figure,
    HumanOutputFormat,
    JSONOutputFormat,
    configure,
)

from unbroken.adapters.sb3.logs import LogFile
from unbroken.errors import RestoreFailed
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback

from .test_callback import Cut, CutAt, forget
from .trainings import ppo

WRITERS = {"csv": CSVOutputFormat, "json": JSONOutputFormat, "text": HumanOutputFormat}
VALUES = st.one_of(
    st.integers(-9, 9999), st.floats(allow_nan=False, width=32), st.text('a",|\u00e9 ', max_size=5)
)
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["rollout/a", "rollout/b", "time/steps", "c"]), VALUES, min_size=1),
    max_size=5,
)


def write(
    path: Path, kind: str, rows: list[dict[str, Any]], times: list[int], shuffle: int, read: LogFile
) -> None:
    """Log `rows` as SB3 does, with a time in each, the keys in another order for each `shuffle`."""
    path.write_bytes(b"")
    writer = WRITERS[kind](str(path))
    for row, seconds in zip(rows, times, strict=True):
        values = [*row.items(), ("time/time_elapsed", seconds), ("time/fps", seconds % 100)]
        random.Random(shuffle).shuffle(values)
        writer.write(dict(values), dict.fromkeys(dict(values), ("",)))
        read.read_from(str(path))
    writer.close()


@pytest.mark.parametrize("kind", WRITERS)
@given(rows=ROWS, seed=st.integers(0, 99))
def test_a_log_read_as_it_grows_is_the_file_and_its_digest_knows_no_times(
    kind: str, rows: list[dict[str, Any]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    grown, other, whole = LogFile(kind), LogFile(kind), LogFile(kind)
    write(folder / "one", kind, rows, [seed * i for i in range(len(rows))], seed, grown)
    write(folder / "other", kind, rows, [7 + 1000 * i for i in range(len(rows))], seed + 1, other)
    assert grown.text == (folder / "one").read_bytes()
    whole.read_from(str(folder / "one"))
    assert grown.digest() == whole.digest() == other.digest()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_value_that_differs_is_another_digest(kind: str, tmp_path: Path) -> None:
    files = LogFile(kind), LogFile(kind)
    for number, file in enumerate(files):
        rows = [{"rollout/a": 1.5, "b": 1}, {"rollout/a": 2.5, "b": number}]
        write(tmp_path / str(number), kind, rows, [1, 2], 0, file)
    assert files[0].digest() != files[1].digest()


def cut_training(folder: Path, formats: list[str], *more: BaseCallback) -> None:
    """Leave a run that was cut, with files of its logger."""
    model, ours = ppo(), CheckpointCallback(20, folder / "run")
    model.set_logger(configure(str(folder), formats))
    with pytest.raises(Cut):
        model.learn(512, callback=[*more, ours, CutAt(110, ours)])
    model.logger.close()
    forget()


def go_on(folder: Path, formats: list[str], *more: BaseCallback) -> str:
    """Let it go on, and return what the start says."""
    model, ours = ppo(), CheckpointCallback(20, folder / "run")
    model.set_logger(configure(str(folder), formats))
    try:
        model.learn(512, callback=[*more, ours])
    finally:
        forget()
        with suppress(OSError):  # a disk that is full refuses what is left to be written, too
            model.logger.close()
    assert ours.report is not None
    return ours.report.text


def test_a_log_more_begins_and_a_log_less_is_named(tmp_path: Path) -> None:
    cut_training(tmp_path, ["csv"])
    said = go_on(tmp_path, ["json"])
    assert "progress.csv" in said and "progress.json" in said
    assert len((tmp_path / "progress.json").read_text().splitlines()) == 5, (
        "of 8 rollouts, those after the checkpoint"
    )


@pytest.mark.filterwarnings(
    "ignore:.*progress.csv cannot be read"
)  # an UncoveredWarning, at the first save without it
def test_a_log_that_was_deleted_is_named_and_training_goes_on(tmp_path: Path) -> None:
    class Delete(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 70:
                (tmp_path / "progress.csv").unlink()
            return True

    cut_training(tmp_path, ["csv", "json"], Delete())
    repository = Repository.open(tmp_path / "run", "rl_model")
    meta = repository.meta(repository.commits()[0])
    assert [note for note in meta.notes if note.startswith("not captured") and "progress.csv" in note]
    assert "progress.csv" in meta.fidelity["logger"].reason
    go_on(tmp_path, ["csv", "json"])
    assert len((tmp_path / "progress.json").read_text().splitlines()) == 8


def test_a_log_that_cannot_be_written_stops_the_start_with_one_sentence(tmp_path: Path) -> None:
    cut_training(tmp_path, ["json"])
    (tmp_path / "progress.json").unlink()
    (tmp_path / "progress.json").symlink_to("/dev/full")
    with pytest.raises(RestoreFailed, match=r"log file .*progress\.json cannot be written"):
        go_on(tmp_path, ["json"])
    (tmp_path / "progress.json").unlink()
    go_on(tmp_path, ["json"])
    assert len((tmp_path / "progress.json").read_text().splitlines()) == 8, (
        "the checkpoint still has all of it"
    )


class Draws(BaseCallback):
    """Logs a figure once, which the logger keeps until the next rollout ends."""

    def _on_step(self) -> bool:
        if self.n_calls == 98:
            mpl.use("Agg")
            away = ("stdout", "log", "json", "csv")
            self.logger.record("drawn/figure", Figure(Drawing(), close=True), exclude=away)
        return True


def test_a_figure_that_waits_to_be_logged_is_left_out_and_said_and_training_goes_on(tmp_path: Path) -> None:
    cut_training(tmp_path, ["json", "tensorboard"], Draws())
    assert "drawn/figure" in go_on(tmp_path, ["json", "tensorboard"], Draws())
    assert len((tmp_path / "progress.json").read_text().splitlines()) == 8


def test_a_checkpoint_does_not_grow_with_the_log(tmp_path: Path) -> None:
    class Long(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 1:
                self.logger.output_formats[0].file.write('{"note": "%s"}\n' % ("n" * 4_000_000))  # type: ignore[attr-defined]
            return True

    cut_training(tmp_path, ["json"], Long())
    commits = Repository.open(tmp_path / "run", "rl_model").commits()
    assert len(commits) >= 3
    packs = sum(path.stat().st_size for path in (tmp_path / "run/rl_model/packs").rglob("*.pack"))
    assert packs < 12_000_000, "one text of 4 MB in every checkpoint would be more"
