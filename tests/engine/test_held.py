"""A snapshot that is held while something takes long: written at once when somebody asks, dropped else."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.runs import break_store, repository, steps_of
from tests.engine.training import Training, engine_of, train
from unbroken.capture.rings import Ring
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.held import Stretches
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.engine.warnings import StagingFullWarning
from unbroken.errors import SaveFailed
from unbroken.state.snapshot import Snapshot


def from_a_thread(engine: CheckpointEngine, reason: str = "somebody asked") -> None:
    asking = threading.Thread(target=engine.request_save, args=(reason,))
    asking.start()
    asking.join()


def from_a_signal(engine: CheckpointEngine) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: engine.request_save("somebody asked"))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("writer", ["thread", "process"])
@pytest.mark.parametrize("ask", [from_a_thread, from_a_signal])
def test_a_save_that_is_asked_for_is_of_the_state_that_is_held(ask: Any, writer: str, root: Path) -> None:
    training = Training()
    engine = engine_of(training, root, writer=writer)
    engine.resume()
    train(engine, training, start=0, until=4)
    assert engine.hold(4, position="step")
    at_four = training.net.weights.copy()
    training.step()
    ask(engine)
    engine.wait()
    assert steps_of(root) == [4, 0], "it was written before the next clean point"
    assert repository(root).meta(repository(root).commits()[0]).reason == "somebody asked"
    training.step()
    assert not engine.step(6), "what was asked for is done"
    engine.close()
    again = Training(seed=2)
    engine = engine_of(again, root)
    assert engine.resume().step == 4
    assert again.net.weights.tobytes() == at_four.tobytes()
    engine.close()


def test_what_nobody_asked_for_is_dropped_and_leaves_no_trace(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    train(engine, training, start=0, until=4)
    engine.hold(4)
    engine.release()
    engine.request_save("somebody asked")
    engine.wait()
    assert steps_of(root) == [0]
    assert repository(root).pending() is None
    assert engine.step(5), "the wish came after the release, so it waits for a clean point"
    engine.close()
    assert steps_of(root) == [5, 0]


def test_a_wish_from_before_is_granted_when_there_is_something_to_write(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.request_save("somebody asked")
    engine.hold(3)
    engine.wait()
    assert steps_of(root) == [3, 0]
    engine.close()


def test_a_wish_that_can_wait_leaves_what_is_held_alone(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.hold(3)
    engine.request_save("not so urgent", at_once=False)
    engine.wait()
    assert steps_of(root) == [0]
    assert engine.step(4)
    engine.close()
    assert steps_of(root) == [4, 0]


def test_many_who_ask_get_one_checkpoint_of_what_is_held(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.hold(3)
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        engine.request_save("somebody asked")

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    engine.release()
    engine.wait()
    assert steps_of(root) == [3, 0]
    engine.close()


def test_a_held_save_that_cannot_be_begun_is_told_to_the_training_and_due_again(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.hold(3)
    pending = root / "run" / "pending.json"
    pending.unlink(missing_ok=True)
    pending.mkdir()
    (pending / "in the way").write_text("")
    from_a_thread(engine)
    with pytest.raises(SaveFailed, match="step 3 could not be begun"):
        engine.release()
    (pending / "in the way").unlink()
    pending.rmdir()
    assert engine.step(4)
    engine.close()
    assert steps_of(root) == [4, 0]


def test_a_held_save_that_fails_in_the_writer_is_told_at_the_next_clean_point(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.hold(3)
    repair = break_store(root)
    from_a_thread(engine)
    with pytest.raises(SaveFailed):
        engine.wait()
    repair()
    assert engine.step(4)
    engine.close()
    assert steps_of(root) == [4, 0]


def test_an_engine_that_is_closed_drops_what_it_holds_and_writes_what_was_asked_for(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.hold(3)
    engine.close()
    assert steps_of(root) == [0]
    engine = engine_of(Training(), root)
    engine.resume()
    engine.hold(4)
    from_a_thread(engine)
    engine.close()
    assert steps_of(root) == [4, 0]


def test_without_memory_for_it_nothing_is_held_and_a_wish_waits(root: Path) -> None:
    training = Training(width=1)
    engine = engine_of(training, root, staging=4096)
    engine.resume()
    training.net.weights = np.zeros((64, 64))
    with pytest.warns(StagingFullWarning, match="none is held"):
        assert not engine.hold(3)
    from_a_thread(engine)
    engine.wait()
    assert steps_of(root) == [0]
    assert engine.step(4)
    engine.close()
    assert steps_of(root) == [4, 0]


class Rows:
    """A ring of rows that declares itself."""

    __unbroken_ring__ = Ring(("rows",), position="at", full="full")

    def __init__(self, capacity: int = 400) -> None:
        self.rows = np.zeros((capacity, 700))
        self.at, self.full = 0, False

    def add(self, value: float) -> None:
        self.rows[self.at] = value
        self.at += 1
        if self.at == len(self.rows):
            self.at, self.full = 0, True


def ring_engine(rows: Rows, root: Path) -> CheckpointEngine:
    source = GraftSource({"buffer": rows}, policy_of_loaded())
    return CheckpointEngine(source, Settings(root=root, job="run", every=Every(steps=10_000)), environment={})


@pytest.mark.parametrize("asked", [False, True], ids=["dropped", "written"])
def test_a_save_after_one_that_was_held_has_every_row(asked: bool, root: Path) -> None:
    rows = Rows()
    engine = ring_engine(rows, root)
    engine.resume()
    for step in range(1, 9):
        for i in range(60):
            rows.add(step + i / 100)
        if step % 2:
            engine.hold(step)
            if asked:
                from_a_thread(engine)
            rows.add(-step)
            engine.release()
        else:
            engine.save(step, reason="test", wait=True)
        engine.wait()
    rows.add(99.0)
    engine.request_save("the last")
    engine.step(9)
    engine.wait()
    kept, at = rows.rows.copy(), rows.at
    engine.close()
    again = Rows()
    engine = ring_engine(again, root)
    assert engine.resume().step == 9
    engine.close()
    assert again.at == at
    assert again.rows.tobytes() == kept.tobytes()


class PutOff(GraftSource):
    """Would rather not be saved now."""

    asked = 0

    def puts_off(self) -> bool:
        self.asked += 1
        return self.asked < 4


def test_a_source_may_put_off_what_its_interval_asks_for_and_nothing_else(root: Path) -> None:
    training = Training()
    source = PutOff({"training": training}, policy_of_loaded())
    engine = CheckpointEngine(source, Settings(root=root, job="run", every=Every(steps=10)), environment={})
    engine.resume()
    assert [step for step in range(9, 15) if engine.step(step)] == [13], "due from 10 on, put off three times"
    engine.wait()
    source.asked = 0
    engine.request_save("somebody asked")
    assert engine.step(21), "a wish is not put off"
    engine.wait()
    source.asked = 0
    engine.save(33, reason="end of training", position="end")
    assert source.asked == 0
    engine.close()
    assert steps_of(root) == [33, 21, 13, 0]


class AsksInItself(GraftSource):
    """Somebody asks for another save while this one is being captured."""

    engine: CheckpointEngine | None = None

    def capture(self) -> Snapshot:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            engine.request_save("the second")
        return super().capture()


def test_a_wish_that_comes_while_another_is_granted_is_not_lost(root: Path) -> None:
    training = Training()
    source = AsksInItself({"training": training}, policy_of_loaded())
    engine = CheckpointEngine(source, Settings(root=root, job="run", every=10_000), environment={})
    engine.resume()
    engine.request_save("the first")
    source.engine = engine
    assert engine.step(1)
    engine.wait()
    assert engine.step(2)
    engine.close()
    assert [repository(root).meta(c).reason for c in repository(root).commits()[:2]] == [
        "the second", "the first",
    ]  # fmt: skip


def test_only_what_was_measured_to_take_long_is_long() -> None:
    now = [0.0]
    stretches = Stretches(30.0, lambda: now[0])
    assert not stretches.is_long("train")
    with stretches.measured("train"):
        now[0] += 31
    assert stretches.is_long("train")
    assert not stretches.is_long("evaluation")
    with stretches.measured("train"):
        now[0] += 2
    assert not stretches.is_long("train"), "the last time counts"
    assert Stretches(0, lambda: 0.0).is_long("whatever")
