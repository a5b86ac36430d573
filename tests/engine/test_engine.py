"""Saving, and the processes that save, through a real repository on disk."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.engine.runs import break_store, repository, run_and_abandon, steps_of
from tests.engine.training import Training, engine_of, source_of, train, undisturbed
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.faults import FaultKind
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.errors import (
    ConfigError,
    Fenced,
    RunBusy,
    SaveFailed,
    StoreDenied,
    StoreError,
    UnbrokenError,
)
from unbroken.repo.fencing import claim
from unbroken.repo.names import TOKEN_DIGITS
from unbroken.repo.process import current
from unbroken.store.local import LocalStore


def test_steps_are_saved_by_crossing(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root, keep_last=50)
    engine.resume()
    for step in range(0, 60, 7):
        if engine.step(step):
            engine.wait()
    engine.close()
    assert steps_of(root) == [56, 42, 35, 21, 14, 0]


def test_a_requested_save_is_made_at_the_next_clean_point(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    assert not engine.step(3)
    engine.request_save("somebody asked")
    assert engine.step(4)
    assert not engine.step(5)
    engine.close()
    assert repository(root).meta(repository(root).commits()[0]).reason == "somebody asked"


def test_it_is_on_record_that_a_save_was_begun_before_it_returns(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    returned = threading.Event()
    write = engine._dispatch._write

    def held_back(*args: Any, **more: Any) -> None:
        assert returned.wait(60)
        write(*args, **more)

    engine._dispatch._write = held_back  # type: ignore[method-assign]
    engine.save(12, reason="test")
    pending = repository(root).pending()
    returned.set()
    engine.close()
    assert pending is not None
    assert pending.step == 12
    assert repository(root).pending() is None


def test_a_failed_save_is_loud_at_the_next_call_and_then_tried_again(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    repair = break_store(root)
    engine.save(10, reason="test")
    engine._writer.wait()
    with pytest.raises(SaveFailed) as raised:
        engine.step(11)
    assert isinstance(raised.value.__cause__, UnbrokenError)
    repair()
    assert engine.step(12), "what failed is due again at once"
    engine.close()
    assert steps_of(root) == [12, 0]


def test_a_failed_save_is_loud_at_close_even_if_it_was_told_before(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    repair = break_store(root)
    engine.save(10, reason="test")
    engine._writer.wait()
    with pytest.raises(SaveFailed):
        engine.step(11)
    with pytest.raises(SaveFailed):
        engine.close()
    repair()
    engine = engine_of(Training(), root)
    assert engine.resume().step == 0, "closing gave the run back"
    engine.close()


def break_history(root: Path) -> None:
    history = root / "run" / "history.jsonl"
    history.unlink()
    history.mkdir()
    (history / "in the way").write_text("")


def test_an_end_that_cannot_be_noted_is_told_and_gives_the_run_back(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    break_history(root)
    with pytest.raises(SaveFailed, match="ended in order") as raised:
        engine.close()
    assert isinstance(raised.value.__cause__, StoreError)
    shutil.rmtree(root / "run" / "history.jsonl")
    engine = engine_of(Training(), root)
    assert engine.resume().restored
    engine.close()


def test_a_lost_checkpoint_is_told_before_a_lost_line(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    break_store(root)
    engine.save(10, reason="test")
    break_history(root)
    with pytest.raises(SaveFailed, match="step 10") as raised:
        engine.close()
    assert isinstance(raised.value.__context__, StoreError)
    assert "history" in str(raised.value.__context__)


def test_a_checkpoint_that_is_there_is_not_called_lost_when_what_it_replaces_cannot_go(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    run = engine._run
    assert run is not None

    def refuse(plan: object) -> None:
        raise StoreDenied("packs/e1 may not be written to.", key="packs/e1")

    run.checkpoints.retain = refuse  # type: ignore[method-assign]
    with pytest.raises(SaveFailed, match="step 7 is saved, but"):
        engine.save(7, reason="test", wait=True)
    assert steps_of(root) == [7, 0]
    with pytest.raises(SaveFailed, match="step 7 is saved, but"):
        engine.close()


def test_a_save_that_cannot_be_begun_is_told_as_such_and_stays_due(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    pending = root / "run" / "pending.json"
    pending.unlink()
    pending.mkdir()
    (pending / "in the way").write_text("")
    for _ in range(2):
        with pytest.raises(SaveFailed, match="step 3 could not be begun") as raised:
            engine.save(3, reason="somebody asked")
        assert isinstance(raised.value.__cause__, StoreError)
    shutil.rmtree(pending)
    assert engine.step(4)
    engine.close()
    assert repository(root).meta(repository(root).commits()[0]).reason == "somebody asked"


def test_a_process_that_was_overtaken_learns_it_as_such(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    claim(LocalStore(root / "run"), token=lambda: "0" * TOKEN_DIGITS, owner=current(), job="run", time=0.0)
    with pytest.raises(Fenced) as raised:
        engine.save(10, reason="test", wait=True)
    assert raised.value.__cause__ is not raised.value
    with pytest.raises(Fenced):
        engine.close()


def test_the_error_of_the_training_stays_the_visible_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    repair = break_store(root)
    engine.save(10, reason="test")
    with pytest.raises(ZeroDivisionError), engine:
        raise ZeroDivisionError
    repair()
    assert "unbroken: The checkpoint of step 10 was not saved" in capsys.readouterr().err


def test_only_what_is_kept_stays_on_disk(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root, keep_last=2, keep_first=True)
    engine.resume()
    train(engine, training, start=0, until=60)
    engine.close()
    assert steps_of(root) == [50, 40, 0]
    assert len(list((root / "run" / "steps").iterdir())) == 3


def test_progress_is_reported_to_who_asks(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "progress"
    training = Training()
    settings = Settings(root=root, job="run", every=Every(steps=10))
    engine = CheckpointEngine(source_of(training), settings, environment={"UNBROKEN_PROGRESS": str(path)})
    engine.resume()
    train(engine, training, start=0, until=26)
    assert struct.unpack("<QQQ", path.read_bytes()) == (25, 20, 0)
    engine.close()


def test_components_load_alone(root: Path) -> None:
    run_and_abandon(root)
    engine = engine_of(Training(), root)
    assert engine.latest_step() == 30
    snapshot = engine.load(20, components={"policy_weights"})
    assert list(snapshot.components) == ["policy_weights"]
    with pytest.raises(ConfigError, match="no checkpoint of step 21"):
        engine.load(21)


def test_an_absent_run_has_no_latest_step(root: Path) -> None:
    assert engine_of(Training(), root).latest_step() is None
    assert not root.exists()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        engine_of(Training(), tmp_path / "file").resume()


def test_saving_needs_a_running_engine(root: Path) -> None:
    engine = engine_of(Training(), root)
    with pytest.raises(ConfigError, match="resume"):
        engine.save(1, reason="too early")
    engine.resume()
    with pytest.raises(ConfigError, match="already"):
        engine.resume()
    engine.close()
    engine.close()
    with pytest.raises(ConfigError):
        engine.save(1, reason="too late")
    with pytest.raises(ConfigError, match="already"):
        engine.resume()


def test_a_second_engine_on_the_same_run_is_refused(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    with pytest.raises(RunBusy):
        engine_of(Training(), root).resume()
    engine.close()


SCRIPT = """
import sys
from pathlib import Path
from tests.engine.training import Training, engine_of, train
training = Training()
engine = engine_of(training, Path(sys.argv[1]))
"""


def python(script: str, root: Path) -> subprocess.CompletedProcess[str]:
    project = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + script, str(root)],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_second_process_on_the_same_run_is_refused(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    done = python("engine.resume()", root)
    engine.close()
    assert done.returncode == 1
    assert "RunBusy" in done.stderr
    assert str(os.getpid()) in done.stderr


def test_a_forked_child_saves_nothing_and_holds_nothing(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    child = os.fork()
    if child == 0:
        status, told = 1, False
        try:
            told = engine.step(1000)
            engine._at_exit()
            engine.save(1000, reason="from a child")
        except ConfigError:
            status = 0 if not told else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.step(10)
    engine.close()
    assert steps_of(root) == [10, 0]


def test_the_interpreter_waits_for_the_last_save_and_leaves_its_last_words(root: Path) -> None:
    done = python(
        "engine.resume(); training.step(); engine.save(1, reason='last'); raise KeyError('out of luck')", root
    )
    assert done.returncode == 1
    assert "out of luck" in done.stderr
    assert steps_of(root) == [1, 0]
    engine = engine_of(Training(), root)
    report = engine.resume()
    engine.close()
    assert report.fault.kind is FaultKind.CLEAN
    assert "KeyError" in report.fault.detail


def test_a_failed_last_save_is_told_at_the_exit_of_the_interpreter(root: Path) -> None:
    done = python(
        "engine.resume(); steps = Path(sys.argv[1]) / 'run' / 'steps';"
        "steps.rename(steps.with_name('aside')); steps.write_text('in the way');"
        "engine.save(1, reason='last')",
        root,
    )
    assert "unbroken: The checkpoint of step 1 was not saved" in done.stderr


def test_a_killed_process_frees_the_run_and_is_recognised(root: Path) -> None:
    done = python(
        "import os, signal; engine.resume(); train(engine, training, start=0, until=15);"
        "os.kill(os.getpid(), signal.SIGKILL)",
        root,
    )
    assert done.returncode == -9
    training = Training()
    engine = engine_of(training, root)
    report = engine.resume()
    assert (report.step, report.fault.kind) == (10, FaultKind.SOFT)
    train(engine, training, start=10, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)
