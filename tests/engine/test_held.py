"""A snapshot that is held while something takes long: written at once when somebody asks, dropped else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.runs import break_store, repository, steps_of
from tests.engine.simulation import Clock
from tests.engine.training import Training, engine_of, train
from unbroken.capture.rings import Ring
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
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
    engine.make_due("not so urgent")
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


class Cheap(GraftSource):
    """Would rather be saved now, whenever it is asked."""

    def is_good_moment(self) -> bool:
        return True


def saved_by(every: Every, root: Path, steps: int = 260) -> list[int]:
    """Return at which steps of a second a source that likes every moment is saved."""
    clock = Clock()
    source = Cheap({"training": Training()}, policy_of_loaded())
    engine = CheckpointEngine(source, Settings(root=root, every=every), clock=clock, environment={})
    engine.resume()
    found: list[int] = []
    for step in range(1, steps):
        clock.now += 1.0
        if engine.step(step):
            engine.wait()
            found.append(step)
    engine.close()
    return found


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (Every(max_loss=100), [50, 100, 150, 200, 250]),
        (Every(max_loss=100, steps=30), [30, 60, 90, 120, 150, 180, 210, 240]),
        (Every(max_overhead=0.02), [*range(10, 260, 10)]),
        (Every(steps=100), [100, 200]),
        (Every(seconds=100), [100, 200]),
    ],
    ids=str,
)
def test_a_good_moment_makes_a_save_come_earlier_where_its_loss_is_bounded_and_never_later(
    every: Every, steps: list[int], root: Path
) -> None:
    assert saved_by(every, root) == steps


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


def test_who_asks_late_leaves_what_is_held_to_the_next(root: Path) -> None:
    """One asks and is kept from going on until its wish was granted and another snapshot is held."""
    engine = engine_of(Training(), root)
    engine.resume()
    engine.make_due("the first")  # has not come to what is held
    assert engine.step(1)
    engine.wait()
    engine.hold(2)
    engine._requests._write_held()  # comes to it now
    from_a_signal(engine)
    engine.wait()
    assert steps_of(root) == [2, 1, 0]
    assert repository(root).meta(repository(root).commits()[0]).reason == "somebody asked"
    engine.close()


def test_a_wish_that_can_wait_does_not_take_the_place_of_an_urgent_one(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.make_due("every 5 calls")
    engine.request_save("SIGTERM")
    engine.make_due("every 5 calls")
    assert engine.step(1)
    engine.wait()
    assert repository(root).meta(repository(root).commits()[0]).reason == "SIGTERM"
    assert not engine.step(2), "one save is for all of them"
    engine.close()


def in_the_way(root: Path) -> Callable[[], None]:
    """Have no save be begun, until what is returned is called."""
    pending = root / "run" / "pending.json"
    pending.unlink(missing_ok=True)
    pending.mkdir()
    (pending / "in the way").write_text("")

    def repair() -> None:
        (pending / "in the way").unlink()
        pending.rmdir()

    return repair


def test_the_end_is_saved_although_a_held_save_could_not_be_begun(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    engine.hold(3)
    repair = in_the_way(root)
    from_a_thread(engine)
    repair()
    training.step()
    with pytest.raises(SaveFailed, match="step 3 could not be begun"):
        engine.save(4, reason="end of training", position="end")
    assert engine.is_finished
    engine.close()
    assert steps_of(root) == [4, 0]
    assert repository(root).history()[-1].reasons == ["end of training"]
    again = Training(seed=2)
    engine = engine_of(again, root)
    assert engine.resume().finished
    assert again.digest() == training.digest()
    engine.close()


def test_the_end_is_saved_although_the_save_before_was_not_written(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    repair = break_store(root)
    engine.request_save("somebody asked")
    engine.step(3)
    engine._writer.wait()
    repair()
    with pytest.raises(SaveFailed, match="step 3"):
        engine.save(4, reason="end of training", position="end")
    assert engine.is_finished
    engine.close()
    assert steps_of(root) == [4, 0]


class Waits:
    """A clock of the date that keeps whoever asks another thread for it waiting until it is opened."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def __call__(self) -> float:
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
            self.gate.wait()
        return 0.0


def held_by_another(root: Path) -> tuple[CheckpointEngine, Waits, threading.Thread]:
    """Return an engine from which a thread has taken what was held, and has not handed it over yet."""
    waits = Waits()
    source = GraftSource({"training": Training()}, policy_of_loaded())
    engine = CheckpointEngine(source, Settings(root=root, job="run", every=10_000), now=waits, environment={})
    engine.resume()
    engine.hold(3)
    asking = threading.Thread(target=engine.request_save, args=("somebody asked",))
    asking.start()
    waits.asked.wait()
    return engine, waits, asking


def test_a_forked_child_neither_holds_nor_waits_for_who_has_taken_what_was_held(root: Path) -> None:
    engine, waits, asking = held_by_another(root)
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # a child that waits for a thread of its parent's ends by this
        held = True
        with suppress(BaseException):
            engine.release()
            engine.wait()
            held = engine.hold(4)
        os._exit(held)
    status = os.waitpid(child, 0)[1]
    waits.gate.set()
    asking.join()
    engine.close()
    assert os.waitstatus_to_exitcode(status) == 0
    assert steps_of(root) == [3, 0]


def test_who_waits_for_what_is_written_waits_for_who_is_about_to_have_it_written(root: Path) -> None:
    engine, waits, asking = held_by_another(root)
    waiting = threading.Thread(target=engine.wait)
    waiting.start()
    assert steps_of(root) == [0]
    waits.gate.set()
    waiting.join()
    assert steps_of(root) == [3, 0]
    asking.join()
    engine.close()


class Interrupts(GraftSource):
    """Whoever has it written is interrupted, as by Ctrl-C."""

    interrupts = False

    def sick_places(self, snapshot: Snapshot) -> dict[str, str]:
        return {}

    def date(self) -> float:
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return 0.0


def test_who_is_interrupted_while_asking_has_written_nothing_and_it_is_due_again(root: Path) -> None:
    source = Interrupts({"training": Training()}, policy_of_loaded())
    engine = CheckpointEngine(
        source, Settings(root=root, job="run", every=10_000), now=source.date, environment={}
    )
    engine.resume()
    engine.hold(3)
    source.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        engine.request_save("somebody asked")
    with pytest.raises(SaveFailed, match="step 3 was interrupted before it had begun"):
        engine.step(4)
    assert engine.step(4), "it was not written"
    engine.close()
    assert steps_of(root) == [4, 0]


class Slow(GraftSource):
    """Takes a second to be captured, on a clock that is given."""

    clock: Clock

    def capture(self) -> Snapshot:
        self.clock.now += 1.0
        return super().capture()


def test_copies_that_were_dropped_are_charged_and_shown_with_the_next_save(root: Path) -> None:
    clock = Clock()
    source = Slow({"training": Training()}, policy_of_loaded())
    source.clock = clock
    settings = Settings(root=root, job="run", every=Every(max_overhead=0.1))
    engine = CheckpointEngine(source, settings, clock=clock, environment={})
    engine.resume()
    for step in range(4):
        engine.hold(step)
        engine.release()
    engine.save(5, reason="test", wait=True)
    assert repository(root).meta(repository(root).commits()[0]).seconds_blocked == 5.0
    since = due = clock.now
    while not engine.step(6):
        clock.now += 1.0
        due = clock.now
    assert due - since == 55, "a second at the start and five now are a tenth of a minute, five seconds ago"
    engine.wait()
    assert repository(root).meta(repository(root).commits()[0]).seconds_blocked == 1.0, "each is charged once"
    engine.close()


def test_training_does_not_stand_still_while_another_thread_has_it_written(root: Path) -> None:
    clock = Clock()
    source = Slow({"training": Training()}, policy_of_loaded())
    source.clock = clock

    def date() -> float:
        clock.now += 7.0
        return 0.0

    settings = Settings(root=root, job="run", every=10_000)
    engine = CheckpointEngine(source, settings, clock=clock, now=date, environment={})
    engine.resume()
    for ask, seconds in ((from_a_thread, 1.0), (from_a_signal, 8.0)):
        engine.hold(3)
        ask(engine)
        engine.wait()
        assert repository(root).meta(repository(root).commits()[0]).seconds_blocked == seconds
    engine.close()
