"""The engine tells the schedule what each save has cost, and a person what cannot hold."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.engine.runs import abandon, break_store, repository, steps_of
from tests.engine.simulation import Clock
from tests.engine.training import POLICY, Training
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.budget import BudgetWarning
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.errors import SaveFailed
from unbroken.state.snapshot import Snapshot


class TimedSource(GraftSource):
    """A source whose copy and whose write take time on a virtual clock."""

    def __init__(self, clock: Clock, *, copy: float, write: float) -> None:
        super().__init__({"training": Training()}, policy_of_loaded(POLICY))
        self.clock, self.copy, self.write = clock, copy, write

    def capture(self) -> Snapshot:
        self.clock.now += self.copy
        return super().capture()

    def sick_places(self, snapshot: Snapshot) -> dict[str, str]:
        """Is asked in the writer's thread, where all of a write happens."""
        self.clock.now += self.write
        return {}


def timed(
    root: Path, every: Every, *, copy: float = 2.0, write: float = 40.0
) -> tuple[Clock, CheckpointEngine]:
    clock = Clock()
    source = TimedSource(clock, copy=copy, write=write)
    return clock, CheckpointEngine(
        source, Settings(root=root, job="run", every=every), clock=clock, environment={}
    )


def seconds_until_due(clock: Clock, engine: CheckpointEngine, step: int) -> float:
    """Train in steps of a second until a save is made and written; return how long it took until it was
    due. For `max_loss` that is a step too early, since the next step would be too late."""
    start = due = clock.now
    while not engine.step(step):
        clock.now += 1
        due = clock.now
    engine.wait()
    return due - start


def until_warned(clock: Clock, engine: CheckpointEngine) -> None:
    for step in range(1, 9):
        seconds_until_due(clock, engine, step)


def test_the_save_of_the_start_is_the_first_that_is_measured(root: Path) -> None:
    clock, engine = timed(root, Every(max_loss="5min"), copy=0)
    engine.resume()
    # 300 s less the 40 s until durable and a fourth of them, from where training begins.
    assert seconds_until_due(clock, engine, 1) == 250 - 1
    # From the copy, and 40 s went by on the clock while it was written.
    assert seconds_until_due(clock, engine, 2) == 250 - 1 - 40
    engine.close()
    assert {m.reason for m in map(repository(root).meta, repository(root).commits()[:2])} == {
        "5 min of work at risk"
    }


def test_blocked_and_writing_seconds_both_count_against_the_overhead(root: Path) -> None:
    clock, engine = timed(root, Every(max_overhead=0.1), copy=2, write=40)
    engine.resume()
    # 42 s are a tenth of 420 s, of which 40 s went by while it was written.
    assert seconds_until_due(clock, engine, 1) == 420 - 40
    engine.close()


def test_a_resumed_process_measures_anew(root: Path) -> None:
    _, engine = timed(root, Every(max_loss="5min"))
    engine.resume()
    abandon(engine)
    clock, engine = timed(root, Every(max_loss="5min"), copy=0)
    assert engine.resume().restored
    assert seconds_until_due(clock, engine, 1) == 270 - 1
    engine.close()


def test_a_save_that_failed_is_not_measured(root: Path) -> None:
    clock, engine = timed(root, Every(max_loss="5min"), write=0)
    engine.resume()
    repair = break_store(root)
    clock.now += 1
    assert isinstance(engine._source, TimedSource)
    engine._source.write = 200
    with pytest.raises(SaveFailed):
        seconds_until_due(clock, engine, 1)
    repair()
    engine._source.write = 0
    assert engine.step(2), "due at once"
    engine.wait()
    assert seconds_until_due(clock, engine, 3) == 300 - 1
    engine.close()


def test_what_cannot_hold_is_warned_of_once_and_saved_all_the_same(root: Path) -> None:
    clock, engine = timed(root, Every(max_loss="5min", max_overhead=0.02))
    engine.resume()
    with pytest.warns(BudgetWarning, match=r"cannot both be held.*max_loss=\"\d+min\"") as caught:
        until_warned(clock, engine)
    assert len(caught) == 1
    engine.close()
    assert steps_of(root)[0] == 8


def test_a_warning_that_is_made_an_error_costs_no_checkpoint(root: Path) -> None:
    clock, engine = timed(root, Every(max_loss="5min", max_overhead=0.02))
    engine.resume()
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        with pytest.raises(BudgetWarning):
            until_warned(clock, engine)
    engine.close()
    assert steps_of(root)[0] == 3, "the third save after that of the start is the first to tell"


def test_the_default_is_in_force(root: Path) -> None:
    clock = Clock()
    source = TimedSource(clock, copy=0, write=0)
    engine = CheckpointEngine(source, Settings(root=root, job="run"), clock=clock, environment={})
    engine.resume()
    assert seconds_until_due(clock, engine, 1_000_000) == 300 - 1
    engine.close()
    assert repository(root).meta(repository(root).commits()[0]).reason == "5 min of work at risk"
