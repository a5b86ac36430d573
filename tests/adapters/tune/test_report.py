"""What Tune is told with a report, by the trainable that Tune makes of a function: without a session of Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters.walk import no_saves
from unbroken.engine.saving import carry_out
from unbroken.errors import SaveFailed
from unbroken.repo.repository import Repository

pytest.importorskip("ray.tune")
JOB = "experiment-abc12_00000"


@pytest.fixture
def tuned(tmp_path: Path) -> Generator[Callable[[Callable[[Any], None]], Any]]:
    """Makes the trainable of a function, as an actor of Tune does."""
    from ray.train._internal.storage import StorageContext
    from ray.tune.result import TRIAL_INFO
    from ray.tune.trainable.function_trainable import wrap_function

    class Storage(StorageContext):
        def _get_session_path(self) -> str:
            return str(tmp_path / "session")

    made: list[Any] = []

    def make(function: Callable[[Any], None]) -> Any:
        storage = Storage(
            storage_path=str(tmp_path / "tune"), experiment_dir_name="experiment", trial_dir_name="trial"
        )
        trial = SimpleNamespace(trial_name="trial", trial_id="abc12_00000", trial_resources=None)
        made.append(wrap_function(function)(config={TRIAL_INFO: trial}, storage=storage))
        return made[-1]

    yield make
    for trainable in made:
        stop(trainable)


def stop(trainable: Any) -> None:
    """End the trial as Tune does, and wait for its thread."""
    from ray.train._internal.session import get_session

    session: Any = get_session()
    if session is not None:
        trainable.stop()
        session.training_thread.join(300)


def start(tmp_path: Path, config: Mapping[str, Any], **options: Any) -> Any:
    import numpy as np

    import unbroken.tune

    return unbroken.tune.start(tmp_path / JOB, config=config, quiet=True, weights=np.zeros(3), **options)


def handed_out(trainable: Any) -> int | None:
    """Return the step that a scheduler hands out now, as Tune's `save` after a report says it; None for nothing."""
    from unbroken.tune import read_pointer

    checkpoint = trainable.save().checkpoint
    return None if checkpoint is None else read_pointer(checkpoint.path).step


@pytest.mark.parametrize(("options", "steps"), [
    ({}, [0, 0, 2, 2, 4]),
    ({"repeat_pointer": False}, [0, None, 2, None, 4]),
])  # fmt: skip
def test_a_scheduler_finds_a_checkpoint_whichever_report_it_decides_at(
    tuned: Callable[[Any], Any], tmp_path: Path, options: dict[str, bool], steps: list[int | None]
) -> None:
    def train(config: dict[str, Any]) -> None:
        run = start(tmp_path, config, every=2, keep_last=1, **options)
        for step in run.steps(5):
            run._trial.engine.wait()  # a disk that is quick
            run.report({"step": step})

    trainable = tuned(train)
    found: list[int | None] = []
    for _ in range(5):
        trainable.train()
        found.append(handed_out(trainable))
    assert found == steps


# What `slowly` changes belongs to this test, and not to the training that loads it.
@pytest.mark.filterwarnings("ignore:Not in the checkpoint. slowly")
def test_a_report_does_not_wait_for_the_disk(
    tuned: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    opened: list[bool] = []

    def slowly(*arguments: Any, **named: Any) -> Any:
        if threading.current_thread().name == "unbroken-writer" and not opened:
            opened.append(gate.wait(300))
        return carry_out(*arguments, **named)

    def train(config: dict[str, Any]) -> None:
        run = start(tmp_path, config, every=2, keep_last=1)
        for step in run.steps(4):
            if step == 1:
                monkeypatch.setattr("unbroken.engine.dispatch.carry_out", slowly)
            if step == 3:
                gate.set()
                run._trial.engine.wait()
            run.report({"step": step})

    trainable = tuned(train)
    found: list[int | None] = []
    for _ in range(4):
        trainable.train()
        found.append(handed_out(trainable))
    assert opened == [True]  # and not closed until its time was over
    assert found == [0, 0, 0, 2]


def test_who_catches_a_save_that_has_failed_goes_on(tuned: Callable[[Any], Any], tmp_path: Path) -> None:
    caught: list[int] = []

    def train(config: dict[str, Any]) -> None:
        run = start(tmp_path, config, every=2)
        steps = run.steps(6)
        with ExitStack() as full:
            for _ in range(20):
                try:
                    step = next(steps, None)
                    if step is None:
                        return
                    if step == 1:
                        full.enter_context(no_saves(tmp_path / JOB))
                    run.report({"step": step})
                except SaveFailed:
                    caught.append(1)
                    full.close()

    trainable = tuned(train)
    while not trainable.train().get("__duplicate__"):
        pass
    assert caught == [1]
    newest = Repository.open(tmp_path / JOB, JOB).commits()[0]
    assert (newest.step, newest.position) == (6, "end")


@pytest.mark.parametrize(("options", "steps"), [
    # What a scheduler has chosen two reports ago is there, and no more than that.
    ({"keep_last": 1}, [8, 7, 6, 5]),
    ({"keep_last": 5}, [8, 7, 6, 5, 4]),
    ({"keep_last": 2, "hold": 0, "keep_first": True}, [8, 7, 0]),
])  # fmt: skip
def test_so_many_are_held_for_other_trials(
    tuned: Callable[[Any], Any], tmp_path: Path, options: dict[str, Any], steps: list[int]
) -> None:
    def train(config: dict[str, Any]) -> None:
        run = start(tmp_path, config, every=1, document_format="msgpack", strict=True, **options)
        for step in run.steps(20):
            run._trial.engine.wait()
            run.report({"step": step})

    trainable = tuned(train)
    for _ in range(9):
        trainable.train()
    run = Repository.open(tmp_path / JOB, JOB)
    assert [commit.step for commit in run.commits()] == steps
    assert list((tmp_path / JOB).rglob("*.msgpack"))


def test_where_tune_ends_the_thread_the_run_is_given_back(
    tuned: Callable[[Any], Any], tmp_path: Path
) -> None:
    def train(config: dict[str, Any]) -> None:
        run = start(tmp_path, config, every=2)
        for step in run.steps(50):
            run.report({"step": step})

    trainable = tuned(train)
    for _ in range(3):
        trainable.train()
    stop(trainable)
    last = Repository.open(tmp_path / JOB, JOB).history()[-1]
    assert (last.event, last.step) == ("end", 2)
