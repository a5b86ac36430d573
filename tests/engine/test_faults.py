"""How the last process ended, told from its traces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from tests.engine.children import die, in_child
from tests.engine.runs import repository
from tests.engine.training import POLICY, Training, engine_of, train
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.faults import EndOfProcess, FaultKind, Traces, classify, with_damage
from unbroken.engine.settings import Settings
from unbroken.engine.traces import read_traces
from unbroken.format import layout
from unbroken.repo.lock import RunLock, read_lease
from unbroken.repo.process import current, identify
from unbroken.repo.seal import seal
from unbroken.types import Epoch

OWNER = "process 7 on here"


@pytest.mark.parametrize(
    ("traces", "kind"),
    [
        (Traces(known=False), FaultKind.NONE),
        (Traces(known=True, closed=True), FaultKind.CLEAN),
        (Traces(known=True, closed=True, same_host=False), FaultKind.CLEAN),
        (Traces(known=True), FaultKind.NONE),
        (Traces(known=True, pending_step=40), FaultKind.SOFT),
        (Traces(known=True, owner=OWNER), FaultKind.SOFT),
        (Traces(known=True, owner=OWNER, same_boot=False), FaultKind.HARD),
        (Traces(known=True, owner=OWNER, same_host=False), FaultKind.HARD),
    ],
)
def test_the_class_follows_from_the_traces(traces: Traces, kind: FaultKind) -> None:
    assert classify(traces).kind is kind


def test_a_save_that_was_under_way_is_told() -> None:
    fault = classify(Traces(known=True, pending_step=1200, newest_step=1000))
    assert "saving step 1,200" in fault.detail
    assert "saving" not in classify(Traces(known=True, pending_step=1000, newest_step=1000)).detail


def test_damage_is_a_class_of_its_own_and_keeps_what_was_known() -> None:
    soft = EndOfProcess(FaultKind.SOFT, "process 7 is gone")
    fault = with_damage(soft, ("commit 3: one byte is wrong", "commit 2: gone"))
    assert fault.kind is FaultKind.DATA
    assert str(fault) == "data: process 7 is gone (soft); damaged: commit 3: one byte is wrong (and 1 more)"
    assert with_damage(soft, ()) is soft


def test_another_container_on_a_machine_that_goes_on_is_a_soft_fault() -> None:
    fault = classify(Traces(known=True, owner=OWNER, same_host=False, same_kernel=True))
    assert fault.kind is FaultKind.SOFT
    assert "container" in fault.detail


def test_the_lease_of_a_process_that_lives_is_told_from_that_of_one_that_is_gone(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.close()
    store = repository(root).store
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        owner = identify(other.pid)
        lock = RunLock(store, "run", owner)
        lock.publish(epoch=Epoch(1), now=0.0)
        assert read_traces(repository(root), current()).is_alive
        assert not read_traces(repository(root), owner).is_alive, "of itself no process takes a run over"
    assert not read_traces(repository(root), current()).is_alive


def test_an_owner_that_lives_is_said_to_have_been_overtaken() -> None:
    traces = Traces(known=True, owner=OWNER, is_alive=True, pending_step=40)
    fault = classify(traces)
    assert fault.kind is FaultKind.SOFT
    assert fault.is_alive
    assert fault.detail == (
        "the run was taken over from process 7 on here, a process that lives, in the middle of saving step 40"
    )


@pytest.mark.parametrize(
    ("traces", "step", "lost"),
    [
        (Traces(known=True), 0, None),
        (Traces(known=True, newest_step=30), 30, None),
        (Traces(known=True, newest_step=30), 10, 20),
        (Traces(known=True, newest_step=30, pending_step=40), 30, 10),
        (Traces(known=True, newest_step=30, pending_step=40, pending_segment=1), 30, None),
        (Traces(known=True, newest_step=90, newest_segment=1), 30, None),
        (Traces(known=True, closed=True, newest_step=30, last_step=30), 30, 0),
        (Traces(known=True, closed=True, newest_step=30, last_step=37), 30, 7),
        (Traces(known=True, closed=True, newest_step=30, last_step=37), 10, 27),
    ],
)
def test_steps_are_lost_as_far_as_there_is_word_of_them(traces: Traces, step: int, lost: int | None) -> None:
    assert traces.lost(0, step) == lost


def lease(root: Path, **other: str) -> None:
    """Let the lease name the owner as another machine, another boot or another process would have it."""
    store = repository(root).store
    record = read_lease(store)
    assert record is not None
    store.put(layout.LEASE, seal(msgspec.structs.replace(record, **other)))


def killed(root: Path) -> None:
    def body() -> None:
        training = Training()
        engine = engine_of(training, root)
        engine.resume()
        train(engine, training, start=0, until=15)
        die()

    assert in_child(body) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("other", "kind", "word"),
    [
        ({}, FaultKind.SOFT, "gone without closing"),
        ({"boot_id": "0f0f"}, FaultKind.HARD, "the host restarted"),
        ({"host": "elsewhere", "boot_id": "0f0f"}, FaultKind.HARD, "on elsewhere"),
        ({"host": "pod-7"}, FaultKind.SOFT, "container"),
    ],
    ids=["killed", "restarted", "another machine", "another container"],
)
def test_a_killed_process_is_told_by_machine_and_boot(
    tmp_path: Path, other: dict[str, str], kind: FaultKind, word: str
) -> None:
    killed(tmp_path)
    lease(tmp_path, **other)
    with engine_of(Training(), tmp_path) as engine:
        report = engine.resume()
    assert (report.fault.kind, report.step) == (kind, 10)
    assert word in report.fault.detail


def test_who_was_killed_after_saying_that_it_ended_has_ended(tmp_path: Path) -> None:
    killed(tmp_path)
    left = read_lease(repository(tmp_path).store)
    assert left is not None

    def body() -> None:
        engine = engine_of(Training(), tmp_path)
        engine.resume()
        kept = read_lease(repository(tmp_path).store)
        engine.close()
        assert kept is not None
        repository(tmp_path).store.put(layout.LEASE, seal(kept))  # as if it had not come to deleting it
        die()

    assert in_child(body) == -signal.SIGKILL
    with engine_of(Training(), tmp_path) as engine:
        assert engine.resume().fault.kind is FaultKind.CLEAN


def test_a_process_that_was_killed_while_it_restored_was_killed(tmp_path: Path) -> None:
    with engine_of(Training(), tmp_path) as engine:
        engine.resume()

    class Fatal(GraftSource):
        def plan(self, *_: object, **__: object) -> NoReturn:
            die()
            raise AssertionError

    def body() -> None:
        settings = Settings(root=tmp_path, job="run")
        source = Fatal({"training": Training()}, policy_of_loaded(POLICY))
        CheckpointEngine(source, settings, environment={}).resume()

    assert in_child(body) == -signal.SIGKILL
    with engine_of(Training(), tmp_path) as engine:
        report = engine.resume()
    assert (report.fault.kind, report.step) == (FaultKind.SOFT, 0)


def test_a_process_that_was_told_to_end_has_ended_in_order_and_nothing_is_lost(tmp_path: Path) -> None:
    def body() -> None:
        training = Training()
        with engine_of(training, tmp_path) as engine:
            engine.resume()
            train(engine, training, start=0, until=17)
            os.kill(os.getpid(), signal.SIGTERM)
            train(engine, training, start=17, until=40)

    assert in_child(body) != 0
    with engine_of(Training(), tmp_path) as engine:
        report = engine.resume()
    assert (report.fault.kind, report.step, report.steps_lost) == (FaultKind.CLEAN, 17, 0)
    assert report.fault.detail.endswith("closed the run: preempted by SIGTERM")


def test_an_error_of_the_script_is_the_last_word_of_its_process(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.engine.training import Training, engine_of, train

training = Training()
engine = engine_of(training, Path({str(tmp_path)!r}))
engine.resume()
train(engine, training, start=0, until=15)
raise ZeroDivisionError("too bold")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=280, check=False)
    assert done.returncode == 1
    with engine_of(Training(), tmp_path) as engine:
        report = engine.resume()
    assert (report.fault.kind, report.step, report.steps_lost) == (FaultKind.CLEAN, 10, 4)
    assert report.fault.detail.endswith("closed the run: ZeroDivisionError: too bold")


@pytest.mark.parametrize(
    ("error", "last_words"),
    [(ZeroDivisionError("too bold"), ": ZeroDivisionError: too bold"), (KeyboardInterrupt(), "")],
    ids=["an error", "an interrupt is none"],
)
def test_an_error_that_leaves_the_block_is_the_last_word_too(
    tmp_path: Path, error: BaseException, last_words: str
) -> None:
    def body() -> None:
        training = Training()
        with engine_of(training, tmp_path) as engine:
            engine.resume()
            train(engine, training, start=0, until=15)
            raise error

    with pytest.raises(type(error)):
        body()
    with engine_of(Training(), tmp_path) as engine:
        report = engine.resume()
    assert report.fault.kind is FaultKind.CLEAN
    assert report.fault.detail.endswith(f"closed the run{last_words}")
