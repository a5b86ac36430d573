"""A training that is told to end: what it saves, how it ends, and what becomes of the handlers of signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import finish, go, results
from tests.engine.ranks import steps_of as steps_of_ranks
from tests.engine.runs import break_store, repository, steps_of
from tests.engine.training import Training, engine_of, train, undisturbed
from unbroken.engine import signals
from unbroken.engine.mirroring import MirrorWarning
from unbroken.engine.preemption import Preempted
from unbroken.errors import Fenced, NoUsableCheckpoint
from unbroken.repo.repository import Repository
from unbroken.store.local import LocalStore

OURS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Begin each test with what a script has, and let nothing that lingers reach the next one."""
    before = {number: signal.getsignal(number) for number in OURS}
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signals._handlers._lingers_until = 0.0


def told_at(root: Path, step: int, number: int = signal.SIGTERM, **settings: Any) -> Preempted:
    """Train from where the run goes on, be told in `step`, and return what has ended the training."""
    training = Training()
    engine = engine_of(training, root, **settings)
    train(engine, training, start=engine.resume().step, until=step)
    training.step()
    signal.raise_signal(number)
    with pytest.raises(Preempted) as ended, engine:
        engine.step(step + 1)
    return ended.value


def test_it_ends_with_the_status_to_requeue_by_and_what_was_saved_goes_on(root: Path) -> None:
    ended = told_at(root, 3)
    assert (ended.code, ended.signal, str(ended)) == (75, "SIGTERM", "preempted by SIGTERM")
    assert steps_of(root) == [4, 0]
    assert repository(root).meta(repository(root).commits()[0]).reason == "preempted by SIGTERM"
    training = Training(seed=2)
    engine = engine_of(training, root)
    report = engine.resume()
    assert (report.step, report.steps_lost, report.fault.kind.value) == (4, 0, "clean")
    assert "preempted by SIGTERM" in report.fault.detail
    train(engine, training, start=4, until=9)
    engine.close()
    assert training.digest() == undisturbed(9)


def test_twenty_ends_by_a_signal_leave_as_many_checkpoints_as_are_kept(root: Path) -> None:
    """K4: each preemption leaves one more file, until the disk is full."""
    sizes = []
    for nth in range(20):
        told_at(root, 3 * nth, keep_last=2)
        sizes.append(
            sum(path.stat().st_size for path in (root / "run" / "packs").rglob("*") if path.is_file())
        )
        assert len(steps_of(root)) == 2, nth
    assert steps_of(root) == [58, 55]
    assert max(sizes[10:]) < 1.1 * max(sizes[2:10]), (
        "what is kept takes as much room after twenty as after ten"
    )


def test_what_was_saved_at_this_very_step_is_not_saved_again(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root, every=3)
    engine.resume()
    train(engine, training, start=0, until=4)  # which has saved step 3
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted), engine:
        engine.step(3)
    assert steps_of(root) == [3, 0]


def test_a_save_that_fails_is_said_and_keeps_nothing_from_ending(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """K5: a failed save must not stop the requeue."""
    engine = engine_of(Training(), root)
    engine.resume()
    repair = break_store(root)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted, match="preempted by SIGTERM"), engine:
        engine.step(2)
    repair()
    assert "step 2 could not be saved, and the run goes on from the one before" in capfd.readouterr().err
    assert steps_of(root) == [0]


def test_a_run_that_another_process_has_taken_over_is_not_to_be_requeued(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Fenced), engine:
        raise Fenced("Another process has taken over.")


def test_told_before_the_first_step_it_ends_and_the_start_stands(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(Preempted), engine:
        engine.step(0)
    assert steps_of(root) == [0]
    assert repository(root).history()[-1].reasons == ["preempted by SIGUSR1"]


def test_told_while_it_is_closed_it_ends_after_that(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    signal.raise_signal(signal.SIGTERM)
    engine.save(5, reason="end of training", position="end")
    with pytest.raises(Preempted):
        engine.close()
    assert [(commit.step, commit.position) for commit in repository(root).commits()] == [
        (5, "end"),
        (0, "start"),
    ]
    assert repository(root).history()[-1].reasons == ["end of training", "preempted by SIGTERM"]


def test_ctrl_c_saves_first_and_then_interrupts_as_it_always_did(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), engine:
        engine.step(2)
    assert steps_of(root) == [2, 0]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_after_the_training_the_handlers_are_what_they_were(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    assert all(signal.getsignal(number) is signals._handlers._handler for number in OURS)
    engine.close()
    assert [signal.getsignal(number) for number in OURS] == [
        signal.SIG_DFL, signal.SIG_DFL, signal.default_int_handler,
    ]  # fmt: skip


def test_a_start_that_fails_gives_the_handlers_back(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.close()
    (root / "run" / "steps").rename(root / "run" / "gone")
    (root / "run" / "steps").write_text("in the way")
    with pytest.raises(NoUsableCheckpoint):
        engine_of(Training(), root).resume()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_was_there_stays_and_one_that_came_meanwhile_too(root: Path) -> None:
    heard: list[int] = []

    def mine(number: int, _: object) -> None:
        heard.append(number)

    signal.signal(signal.SIGTERM, mine)
    engine = engine_of(Training(), root)
    engine.resume()
    signal.raise_signal(signal.SIGTERM)
    assert not engine.step(1)
    signal.signal(signal.SIGUSR1, mine)
    engine.close()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)) == (mine, mine)
    assert heard == [signal.SIGTERM]


def test_outside_of_the_main_thread_no_signal_is_taken(root: Path) -> None:
    def work() -> None:
        engine = engine_of(Training(), root)
        engine.resume()
        seen.append(signal.getsignal(signal.SIGTERM))
        engine.close()

    seen: list[Any] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_the_first_of_two_trainings_to_come_to_a_clean_point_saves_and_ends(tmp_path: Path) -> None:
    one, other = engine_of(Training(), tmp_path / "one"), engine_of(Training(), tmp_path / "other")
    one.resume()
    other.resume()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted), one:
        one.step(2)
    with pytest.raises(Preempted):
        other.close()
    assert steps_of(tmp_path / "one") == [2, 0]
    assert steps_of(tmp_path / "other") == [0]


def test_further_signals_change_nothing_on_the_way_out(root: Path) -> None:
    told_at(root, 2)
    for _ in range(10):
        signal.raise_signal(signal.SIGTERM)
    assert steps_of(root) == [3, 0]


def test_ranks_that_are_all_told_end_together_with_their_next_save(tmp_path: Path) -> None:
    plain, root = tmp_path / "plain", tmp_path / "run"
    finish(plain, 2)
    ended = go(root, 2, told=11)
    assert [one.status for one in ended] == [75, 75], [one.stderr for one in ended]
    assert steps_of_ranks(root)[0] == 15
    finish(root, 2)
    assert [results(root, rank) for rank in range(2)] == [results(plain, rank) for rank in range(2)]


def test_a_mirror_that_hangs_is_not_waited_for_longer_than_the_grace(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, answers, asked = tmp_path / "mirror", threading.Event(), threading.Event()
    put_if_absent = LocalStore.put_if_absent

    def hanging(self: LocalStore, key: str, data: Any) -> bool:
        if key.startswith("commits/") and mirror in self.local_path().parents:
            asked.set()
            assert answers.wait(timeout=100)
        return put_if_absent(self, key, data)

    monkeypatch.setattr(LocalStore, "put_if_absent", hanging)
    with pytest.warns(MirrorWarning, match="a signal has told the process to end") as told:
        told_at(root, 3, mirror=mirror, grace=0)
    assert len(told) == 1
    assert asked.is_set()
    assert steps_of(root) == [4, 0]
    assert "is not waited for" in repository(root).history()[-1].reasons[-1]
    assert Repository.open(mirror, "run").commits() == []
    rounds = [thread for thread in threading.enumerate() if thread.name == "unbroken-mirror"]
    assert [thread.daemon for thread in rounds] == [True], "the interpreter does not wait for it either"
    answers.set()
    rounds[0].join()
    engine = engine_of(Training(), root, mirror=mirror)
    assert engine.resume().step == 4
    engine.close()
    assert Repository.open(mirror, "run").commits()[0].step == 4
