"""A training that is told to end: what it saves, how it ends, and what becomes of the handlers of signals."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.ranks import finish, go, results
from tests.engine.ranks import steps_of as steps_of_ranks
from tests.engine.runs import break_store, repository, steps_of
from tests.engine.training import Training, engine_of, train, undisturbed
from tests.ports import HOST, free_port
from unbroken.adapters.loop import Run
from unbroken.engine import signals
from unbroken.engine.mirroring import Mirroring, MirrorWarning
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.observer import Nobody
from unbroken.engine.preemption import Preempted
from unbroken.engine.progress import Progress
from unbroken.engine.snapshots import Snapshots
from unbroken.errors import Fenced, NoUsableCheckpoint
from unbroken.repo.repository import Repository
from unbroken.store.local import LocalStore

if TYPE_CHECKING:
    from typing_extensions import Self

OURS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Interrupted:
    """Sends this process a signal each time a function of this name is called, from the `first` time on."""

    def __init__(self, name: str, number: int = signal.SIGTERM, *, times: int = 1, first: int = 0) -> None:
        self._name = name
        self._number = number
        self._left = times
        self._skipped = first
        self.calls = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or self._name not in ("", frame.f_code.co_name):
            return
        self.calls += 1
        if self._left and self.calls > self._skipped:
            self._left -= 1
            signal.raise_signal(self._number)


class Swallows:
    """State whose restore is interrupted, and which keeps that to itself."""

    def __init__(self, *, signals: int = 0) -> None:
        self.signals = signals

    def state_dict(self) -> dict[str, int]:
        return {"value": 1}

    def load_state_dict(self, _: dict[str, int]) -> None:
        for _nth in range(self.signals):
            with suppress(BaseException):
                signal.raise_signal(signal.SIGTERM)


def is_given_back(root: Path) -> bool:
    """Whether the run and the signals are free again."""
    again = engine_of(Training(), root, signals=())
    again.resume()  # raises RunBusy where they are not
    again.close()
    return [signal.getsignal(number) for number in OURS] == [
        signal.SIG_DFL, signal.SIG_DFL, signal.default_int_handler,
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Begin each test with what a script has, and let nothing that lingers reach the next one."""
    before = {number: signal.getsignal(number) for number in OURS}
    signals._handlers._listeners.clear()  # of an engine that a test elsewhere has left open
    signals._handlers._before.clear()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signals._handlers._lingers_until = 0.0
    signals._handlers._before.clear()


def told_at(
    root: Path,
    step: int,
    number: int = signal.SIGTERM,
    *,
    before: Callable[[], bool] = lambda: True,
    **settings: Any,
) -> Preempted:
    """Train from where the run goes on, be told in `step`, once `before` has held, and return what has ended the training."""
    training = Training()
    engine = engine_of(training, root, **settings)
    train(engine, training, start=engine.resume().step, until=step)
    training.step()
    assert before()
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


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_second_ctrl_c_while_the_first_one_has_a_copy_written_does_not_destroy_that_save(
    share: float, tmp_path: Path
) -> None:
    def told(root: Path, first: int) -> int:
        engine = engine_of(Training(), root)
        engine.resume()
        engine.step(1)
        assert engine.hold(1)
        calls = Interrupted("", signal.SIGINT, first=first)
        with suppress(KeyboardInterrupt), calls:
            signal.raise_signal(signal.SIGINT)
        with suppress(KeyboardInterrupt):  # once is enough
            engine.close()
        assert steps_of(root) == [1, 0], "what was held is saved"
        assert repository(root).history()[-1].reasons == ["interrupted by SIGINT"]
        return calls.calls

    whole = told(tmp_path / "counted", 10**9)
    assert whole > 100
    told(tmp_path / "interrupted", int(share * whole) + 4)


@pytest.mark.parametrize("name", ["show", "sit", "find", "_save", "expect", "history"])
def test_a_signal_anywhere_in_a_start_leaves_nothing_taken(name: str, root: Path) -> None:
    port = free_port()
    engine = engine_of(Training(), root, monitoring=Monitoring(port=port))
    with pytest.raises(Preempted), Interrupted(name, times=3) as calls:
        engine.resume()
    assert calls.calls
    with socket.socket() as asks:
        assert asks.connect_ex((HOST, port)), "nothing is served any more"
    signals._handlers._lingers_until = 0.0
    for number in OURS[:2]:
        signal.signal(number, signal.SIG_DFL)
    assert is_given_back(root)


def test_a_signal_that_a_restore_keeps_to_itself_ends_the_start_and_gives_everything_back(root: Path) -> None:
    def start(*, signals: int) -> list[int]:
        run = Run(root, job="run", quiet=True)
        run.track(part=Swallows(signals=signals))
        return list(run.steps(5))

    run = Run(root, job="run", quiet=True)
    run.track(part=Swallows())
    for step in run.steps(5):
        if step == 3:
            break
    run.close()
    with pytest.raises(Preempted):
        start(signals=3)
    assert repository(root).history()[-1].reasons == ["preempted by SIGTERM"]
    for number in OURS[:2]:
        signal.signal(number, signal.SIG_DFL)
    assert start(signals=0) == [0, 1, 2, 3, 4]


FALLIBLE: dict[str, tuple[type, str]] = {
    "mirroring": (Mirroring, "close"),
    "observer": (Nobody, "ended"),
    "progress": (Progress, "close"),
    "memory": (Snapshots, "close"),
}


@pytest.mark.parametrize("step", FALLIBLE)
def test_whatever_fails_at_the_end_the_run_is_given_back(
    step: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(Training(), root, mirror=root.parent / "mirror")
    engine.resume()

    def fails(*_: object, **_named: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(*FALLIBLE[step], fails)
    with pytest.raises(OSError, match="Input/output error"):
        engine.close()
    monkeypatch.undo()
    assert repository(root).history()[-1].event == "end"
    assert is_given_back(root)


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


@pytest.mark.exactness
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
            assert answers.wait(timeout=280)
        return put_if_absent(self, key, data)

    monkeypatch.setattr(LocalStore, "put_if_absent", hanging)
    with pytest.warns(MirrorWarning, match="a signal has told the process to end") as told:
        told_at(root, 3, before=lambda: asked.wait(60), mirror=mirror, grace=0)
    assert len(told) == 1
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
