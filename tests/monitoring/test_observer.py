"""What an engine tells an observer, and when."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.engine.runs import break_store, flip_newest, run_and_abandon
from tests.engine.training import Training, engine_of, train
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.observer import Nobody, Observer, Saved, Several
from unbroken.engine.report import ResumeReport
from unbroken.errors import NoUsableCheckpoint, SaveFailed


class Recorder:
    """Keeps the names of what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.saves: list[Saved] = []
        self.errors: list[BaseException] = []

    def starting(self) -> None:
        self.told.append("starting")

    def started(self, report: ResumeReport) -> None:
        self.told.append(f"started at {report.step}")

    def not_started(self, error: BaseException) -> None:
        self.told.append("not started")
        self.errors.append(error)

    def saved(self, save: Saved) -> None:
        self.told.append(f"saved {save.step}")
        self.saves.append(save)

    def not_saved(self, error: BaseException, *, step: int, committed: bool = False) -> None:
        self.told.append(f"not saved {step}" + (", but committed" if committed else ""))
        self.errors.append(error)

    def speak(self) -> None:
        """Has nothing to say."""

    def ended(self) -> None:
        self.told.append("ended")


def observed(training: Training, root: Path) -> tuple[CheckpointEngine, Recorder]:
    engine = engine_of(training, root)
    assert isinstance(engine._observer, Several)
    assert isinstance(engine._observer.observers[0], Nobody)
    recorder = Recorder()
    observer: Observer = recorder
    engine._observer = engine._dispatch.observer = observer
    return engine, recorder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_run_tells_of_its_start_its_saves_and_its_end_and_of_no_step(root: Path) -> None:
    training = Training()
    engine, recorder = observed(training, root)
    engine.resume()
    train(engine, training, start=0, until=29)
    engine.close()
    assert recorder.told == ["starting", "saved 0", "started at 0", "saved 10", "saved 20", "ended"]
    assert all(save.blocked > 0 and 0 < save.durable <= save.busy for save in recorder.saves)


def test_a_restart_tells_from_where_it_goes_on(root: Path) -> None:
    run_and_abandon(root, until=37)
    engine, recorder = observed(Training(), root)
    engine.resume()
    engine.close()
    assert recorder.told == ["starting", "started at 30", "ended"]


def test_a_start_that_stops_tells_why_and_nothing_else(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root, count=9)
    engine, recorder = observed(Training(), root)
    with pytest.raises(NoUsableCheckpoint) as raised:
        engine.resume()
    assert recorder.told == ["starting", "not started"]
    assert recorder.errors == [raised.value]


class Complains(Recorder):
    """Warns each time, and warnings are errors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def speak(self) -> None:
        self.told.append("spoke")
        warnings.warn(self.text, stacklevel=2)

    def ended(self) -> None:
        super().ended()
        warnings.warn(self.text, stacklevel=2)


@pytest.mark.filterwarnings("error")
def test_a_warning_made_an_error_in_one_observer_keeps_no_other_from_its_word() -> None:
    first, second, third = Complains("one"), Complains("two"), Recorder()
    several = Several(first, second, third)
    for tell in (several.speak, several.ended):
        with pytest.raises(UserWarning, match="two") as raised:
            tell()
        assert str(raised.value.__context__) == "one"
    assert first.told == second.told == ["spoke", "ended"]
    assert third.told == ["ended"]


def test_a_failure_is_told_by_the_writer_and_its_cause_says_so_when_the_training_hears_of_it(
    root: Path,
) -> None:
    engine, recorder = observed(Training(), root)
    engine.resume()
    repair = break_store(root)
    engine.save(5, reason="asked for")
    engine._writer.wait()
    repair()
    with pytest.raises(SaveFailed):
        engine.save(6, reason="asked for")
    assert recorder.told[3:] == ["not saved 5", "not saved 6"]
    first, again = recorder.errors
    assert again is first or again.__cause__ is first
    engine.save(7, reason="asked for", wait=True)
    engine.close()
    assert recorder.told[5:] == ["saved 7", "ended"]
