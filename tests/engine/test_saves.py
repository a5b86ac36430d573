"""The records that a training's saves leave: whole after a kill, and nothing that a training could stumble over."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import pytest

from tests.engine.children import die, in_child
from tests.engine.runs import repository, steps_of
from tests.engine.training import Training, engine_of, train, undisturbed
from unbroken.format.saves import SAVES
from unbroken.repo.saves import SaveRecordWarning

WRITERS = ("thread", "process")


def train_on(root: Path, writer: str, *, until: int, killed: bool = False) -> Training:
    training = Training()
    engine = engine_of(training, root, writer=writer, keep_last=1)
    start = engine.resume().step
    train(engine, training, start=start, until=until)
    if killed:
        die()
    engine.save(until, reason="end of training", position="end")
    engine.close()
    return training


@pytest.mark.parametrize("writer", WRITERS)
def test_a_killed_training_leaves_a_record_of_each_save(tmp_path: Path, writer: str) -> None:
    root = tmp_path / "runs"
    assert in_child(lambda: train_on(root, writer, until=35, killed=True)) == -signal.SIGKILL
    assert steps_of(root) == [30]
    found = repository(root).saves()
    assert [record.step for record in found] == [0, 10, 20, 30]
    assert all(record.durable is not None and record.durable > 0 for record in found)
    assert all(record.blocked is not None and record.blocked > 0 for record in found)
    assert [record.position for record in found] == ["start", "step", "step", "step"]

    resumed = train_on(root, writer, until=50)
    assert resumed.digest() == undisturbed(50)
    again = repository(root).saves()
    assert [record.step for record in again] == [0, 10, 20, 30, 40, 50]
    assert again[:4] == found
    assert again[3].epoch < again[4].epoch


def test_what_the_companion_of_a_killed_training_saves_is_on_record(tmp_path: Path) -> None:
    root = tmp_path / "runs"

    def killed() -> None:
        training = Training()
        engine = engine_of(training, root, writer="process", keep_last=1)
        engine.resume()
        train(engine, training, start=0, until=20)
        assert engine._companion is not None and engine._companion.pid is not None
        os.kill(engine._companion.pid, signal.SIGSTOP)
        engine.save(20, reason="test")
        (tmp_path / "companion").write_text(str(engine._companion.pid))
        die()

    assert in_child(killed) == -signal.SIGKILL
    assert [record.step for record in repository(root).saves()] == [0, 10]
    os.kill(int((tmp_path / "companion").read_text()), signal.SIGCONT)
    assert repository(root).await_companion() is None
    found = repository(root).saves()
    assert [record.step for record in found] == [0, 10, 20]
    assert found[-1].durable is not None


@pytest.mark.parametrize("writer", WRITERS)
def test_a_record_that_cannot_be_written_is_said_once_and_costs_nothing(tmp_path: Path, writer: str) -> None:
    root = tmp_path / "runs"
    (root / "run").mkdir(parents=True)
    (root / "run" / SAVES).write_text("in the way")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        training = train_on(root, writer, until=50)
    said = [str(one.message) for one in heard if one.category is SaveRecordWarning]
    assert len(said) == 1
    assert "every checkpoint is as it should be" in said[0]
    assert SAVES in said[0]
    assert training.digest() == undisturbed(50)
    assert steps_of(root) == [50]
    assert [record.step for record in repository(root).saves()] == [50]


def test_only_the_last_save_failing_to_leave_a_record_is_heard(tmp_path: Path) -> None:
    training = Training()
    engine = engine_of(training, tmp_path)
    engine.resume()
    saves = tmp_path / "run" / SAVES
    saves.rename(tmp_path / "aside")
    saves.write_text("in the way")
    engine.save(5, reason="test")
    with pytest.warns(SaveRecordWarning):
        engine.close()
    assert steps_of(tmp_path)[0] == 5
