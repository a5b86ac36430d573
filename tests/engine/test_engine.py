"""Saving and resuming through a real repository on disk."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.training import Training, engine_of, source_of, train, undisturbed
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.faults import FaultKind
from unbroken.engine.recovery import Tier
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.errors import (
    ConfigError,
    Fenced,
    NoUsableCheckpoint,
    RunBusy,
    SaveFailed,
    StateMismatch,
    StoreError,
    UnbrokenError,
)
from unbroken.repo.fencing import claim
from unbroken.repo.names import TOKEN_DIGITS
from unbroken.repo.process import current
from unbroken.repo.repository import Repository
from unbroken.repo.retention import Best
from unbroken.store.local import LocalStore


def abandon(engine: CheckpointEngine) -> None:
    """Leave the run as a killed process would, but for the lock, which this process still needs."""
    engine.wait()
    engine._release(note=False)


def repository(root: Path) -> Repository:
    return Repository.open(root, "run")


def steps_of(root: Path) -> list[int]:
    return [commit.step for commit in repository(root).commits()]


def flip_newest(root: Path, *, count: int = 1) -> None:
    for commit in repository(root).commits()[:count]:
        victim = root / "run" / commit.directory / "policy_weights.json"
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(bytes(data))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def run_and_abandon(root: Path, until: int = 37) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    train(engine, training, start=0, until=until)
    abandon(engine)


# ---------------------------------------------------------------------- start, resume, end


def test_the_start_is_committed_before_training_goes_on(root: Path) -> None:
    engine = engine_of(Training(), root)
    report = engine.resume()
    assert (report.tier, report.step, report.fault.kind) == (Tier.FRESH, 0, FaultKind.NONE)
    (commit,) = repository(root).commits()
    assert (commit.step, commit.position) == (0, "start")
    engine.close()


@pytest.mark.parametrize("killed_at", [1, 9, 10, 11, 37])
def test_a_resumed_run_ends_as_the_undisturbed_one(root: Path, killed_at: int) -> None:
    run_and_abandon(root, killed_at)
    training = Training(seed=99)
    engine = engine_of(training, root)
    report = engine.resume()
    assert report.restored
    assert report.step == (killed_at - 1) // 10 * 10
    train(engine, training, start=report.step, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_left_cold_it_would_not_end_so(root: Path) -> None:
    run_and_abandon(root)
    training = Training()
    engine = engine_of(training, root)
    report = engine.resume()
    training.generator = np.random.default_rng(1)
    train(engine, training, start=report.step, until=60)
    engine.close()
    assert training.digest() != undisturbed(60)


def test_the_end_is_committed_and_a_finished_run_says_so(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    train(engine, training, start=0, until=25)
    engine.save(25, reason="end of training", position="end")
    engine.close()
    expected = training.digest()

    again = Training()
    engine = engine_of(again, root)
    report = engine.resume()
    engine.close()
    assert report.finished
    assert "had finished at step 25" in report.line
    assert report.fault.kind is FaultKind.CLEAN
    assert again.digest() == expected


def test_the_line_says_what_came_back(root: Path) -> None:
    run_and_abandon(root)
    engine = engine_of(Training(), root)
    line = engine.resume().line
    engine.close()
    assert line == (
        "unbroken: goes on at step 30 from the newest checkpoint · the last process was killed or crashed"
        " · learning rate 0.5 · exact: all 2 parts"
    )


def test_history_holds_every_start_and_end(root: Path) -> None:
    run_and_abandon(root)
    engine = engine_of(Training(), root)
    engine.resume()
    engine.close()
    told = [(record.event, record.tier, record.fault, record.step) for record in repository(root).history()]
    assert told == [("start", "fresh", "", 0), ("start", "newest", "soft", 30), ("end", "", "", 30)]


def test_metadata_holds_what_a_person_asks(root: Path) -> None:
    run_and_abandon(root)
    commit = repository(root).commits()[0]
    meta = repository(root).meta(commit)
    assert (meta.step, meta.pid, meta.job, meta.reason) == (30, os.getpid(), "run", "every 10 steps")
    assert meta.host
    assert meta.versions["numpy"] == np.__version__
    assert "instruction set" in meta.fingerprint
    assert meta.fidelity["policy_weights"].fidelity == "exact"
    assert meta.seconds_blocked > 0
    assert meta.counters["bytes"]["policy_weights"] == 16 * 16 * 8
    assert meta.counters["learning_rate"] == 0.5


# ---------------------------------------------------------------------- falling back


def test_a_damaged_checkpoint_is_passed_over_and_said(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root)
    training = Training()
    engine = engine_of(training, root)
    report = engine.resume()
    assert (report.tier, report.step, report.fault.kind) == (Tier.OLDER, 20, FaultKind.DATA)
    assert any("step 30" in reason for reason in report.reasons)
    assert "policy_weights" in report.text
    train(engine, training, start=20, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_if_all_are_damaged_the_run_stops_and_lists_each(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root, count=4)
    training = Training()
    before = training.digest()
    engine = engine_of(training, root)
    with pytest.raises(NoUsableCheckpoint) as raised:
        engine.resume()
    assert [f"step {n}" in str(raised.value) for n in (30, 20, 10, 0)] == [True] * 4
    training.generator = Training().generator
    assert training.digest() == before
    assert steps_of(root) == [30, 20, 10, 0]


def test_unattended_jobs_may_start_anew_and_the_reason_is_kept(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root, count=4)
    engine = engine_of(Training(), root, worst_tier="fresh")
    report = engine.resume()
    engine.close()
    assert report.tier is Tier.FRESH
    record = next(r for r in reversed(repository(root).history()) if r.event == "start")
    assert (record.tier, record.fault) == ("fresh", "data")
    assert len(record.reasons) == 5


def test_worst_tier_newest_takes_no_older_one(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root)
    with pytest.raises(NoUsableCheckpoint, match="worst_tier"):
        engine_of(Training(), root, worst_tier="newest").resume()


def test_weights_that_are_not_finite_are_kept_but_not_taken(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    train(engine, training, start=0, until=15)
    training.net.weights[3, 3] = np.inf
    train(engine, training, start=15, until=25)
    abandon(engine)
    newest = repository(root).commits()[0]
    assert (newest.step, newest.good) == (20, False)

    engine = engine_of(Training(), root)
    report = engine.resume()
    engine.close()
    assert (report.step, report.tier) == (10, Tier.OLDER)
    assert any("NaN or infinite" in reason for reason in report.reasons)

    engine = engine_of(Training(), root, resume=20)
    assert engine.resume().step == 20
    engine.close()


def test_infinity_that_was_there_from_the_beginning_is_no_fault(root: Path) -> None:
    def masked() -> Training:
        training = Training()
        training.net.mask = np.full((3, 3), -np.inf)  # type: ignore[attr-defined]
        return training

    training = masked()
    engine = engine_of(training, root)
    engine.resume()
    train(engine, training, start=0, until=15)
    abandon(engine)
    assert all(commit.good for commit in repository(root).commits())

    training = masked()
    engine = engine_of(training, root)
    report = engine.resume()
    assert (report.step, report.tier) == (10, Tier.NEWEST)
    train(engine, training, start=10, until=25)
    assert repository(root).commits()[0].good
    training.net.weights[3, 3] = np.inf
    train(engine, training, start=25, until=35)
    abandon(engine)
    assert [commit.good for commit in repository(root).commits()[:2]] == [False, True]
    assert "not finite: training/net/weights" in repository(root).meta(repository(root).commits()[0]).notes


def test_a_second_training_does_not_take_what_the_first_spoiled_for_its_beginning(root: Path) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    training.net.weights[3, 3] = np.nan
    engine.save(5, reason="end", position="end")
    engine.close()
    engine = engine_of(training, root, segment=1)
    engine.resume(step=5)
    engine.close()
    assert [commit.good for commit in repository(root).commits()] == [False, False, True]


def test_a_checkpoint_that_was_found_damaged_takes_no_place_among_the_last(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root, count=2)
    training = Training()
    engine = engine_of(training, root, keep_last=2)
    assert engine.resume().step == 10
    engine.save(11, reason="test", wait=True)
    engine.close()
    assert steps_of(root) == [11, 10]


# ---------------------------------------------------------------------- what is asked for


def test_must_needs_a_checkpoint(root: Path) -> None:
    with pytest.raises(NoUsableCheckpoint, match="must"):
        engine_of(Training(), root, resume="must").resume()


def test_never_starts_anew_and_the_old_ones_do_not_come_back(root: Path) -> None:
    run_and_abandon(root)
    engine = engine_of(Training(), root, resume="never")
    assert engine.resume().tier is Tier.FRESH
    engine.close()
    engine = engine_of(Training(), root)
    assert engine.resume().step == 0
    engine.close()


def test_a_named_step_is_taken(root: Path) -> None:
    run_and_abandon(root)
    engine = engine_of(Training(), root, resume=20)
    assert engine.resume().step == 20
    engine.close()
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint has step 21"):
        engine_of(Training(), root, resume=21).resume()


def test_of_an_empty_run_the_best_is_its_start(root: Path) -> None:
    engine = engine_of(Training(), root, resume="best", best=Best("score"))
    assert engine.resume().tier is Tier.FRESH
    engine.close()


def test_the_best_is_taken_and_outlives_the_others(root: Path) -> None:
    training = Training()
    best = Best("score")
    engine = engine_of(training, root, keep_last=1, best=best)
    engine.resume()
    for step in range(41):
        if engine.step(step, metrics={"score": -abs(step - 20.0)}):
            engine.wait()
        training.step()
    abandon(engine)
    assert steps_of(root) == [40, 20]
    engine = engine_of(Training(), root, keep_last=1, best=best, resume="best")
    assert engine.resume().step == 20
    engine.close()


def test_a_metric_without_a_number_does_not_spoil_the_checkpoint(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.save(3, reason="test", metrics={"score": float("nan"), "loss": 2.0}, wait=True)
    meta = repository(root).meta(repository(root).commits()[0])
    engine.close()
    assert meta.metrics == {"loss": 2.0}
    assert "metric score was nan" in meta.notes


# ---------------------------------------------------------------------- what the user changed


def test_a_changed_setting_wins_is_reported_and_stays(root: Path) -> None:
    run_and_abandon(root)
    training = Training(rate=0.25)
    engine = engine_of(training, root)
    report = engine.resume()
    assert report.changes == ("training/rate: 0.5 -> 0.25 (the new one is used)",)
    assert (training.rate, training.count) == (0.25, 30)
    assert engine.step(30), "the changed setting is saved at once"
    engine.close()

    again = Training(rate=0.25)
    engine = engine_of(again, root)
    report = engine.resume()
    engine.close()
    assert report.changes == ()

    back = Training(rate=0.5)
    engine = engine_of(back, root)
    report = engine.resume()
    engine.close()
    assert report.changes == ("training/rate: 0.25 -> 0.5 (the new one is used)",)
    assert back.rate == 0.5


def test_a_changed_setting_that_was_never_saved_is_still_a_change(root: Path) -> None:
    run_and_abandon(root)
    for _ in range(2):
        training = Training(rate=0.25)
        engine = engine_of(training, root)
        assert len(engine.resume().changes) == 1
        assert training.rate == 0.25
        abandon(engine)


@pytest.mark.parametrize("options", [{"resume": 20}, {"resume": "best", "best": Best("score")}, {}])
def test_a_setting_that_was_changed_long_ago_wins_over_an_older_checkpoint_too(
    root: Path, options: dict[str, Any]
) -> None:
    """The newest commit knows the change already; those before it were born with the former value."""
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    for step in range(37):
        if engine.step(step, metrics={"score": -abs(step - 20.0)}):
            engine.wait()
        training.step()
    abandon(engine)

    engine = engine_of(Training(rate=0.25), root)
    assert engine.resume().step == 30
    assert engine.step(30, metrics={"score": -10.0})
    engine.close()
    assert steps_of(root)[:3] == [30, 30, 20]
    if not options:
        flip_newest(root, count=2)

    training = Training(rate=0.25)
    engine = engine_of(training, root, **options)
    report = engine.resume()
    engine.close()
    assert (report.step, training.count) == (20, 20)
    assert report.changes == ("training/rate: 0.5 -> 0.25 (the new one is used)",)
    assert training.rate == 0.25


def test_a_start_that_ends_before_its_first_checkpoint_changes_nothing(root: Path) -> None:
    run_and_abandon(root)
    engine = engine_of(Training(rate=0.125), root, resume="never")
    repair = break_store(root)
    with pytest.raises(SaveFailed):
        engine.resume()
    repair()
    training = Training()
    engine = engine_of(training, root)
    report = engine.resume()
    engine.close()
    assert (report.step, report.changes, training.rate) == (30, (), 0.5)


def test_strict_refuses_a_changed_setting_before_anything_is_touched(root: Path) -> None:
    run_and_abandon(root)
    training = Training(rate=0.25)
    with pytest.raises(StateMismatch) as raised:
        engine_of(training, root, strict=True).resume()
    assert raised.value.differences == ("training/rate: 0.5 -> 0.25",)
    assert (training.rate, training.count) == (0.25, 0)
    engine = engine_of(training, root, strict=True, allow_changed={"rate"})
    assert engine.resume().step == 30
    engine.close()


def test_what_does_not_fit_stops_the_start_and_never_falls_back(root: Path) -> None:
    run_and_abandon(root)
    training = Training(width=8)
    with pytest.raises(StateMismatch) as raised:
        engine_of(training, root).resume()
    assert raised.value.differences == ("training/net/weights: (16, 16) -> (8, 8)",)
    assert training.count == 0
    assert not training.net.weights.any()
    assert steps_of(root) == [30, 20, 10, 0]


def test_values_that_are_drawn_at_every_start_are_no_changes(root: Path) -> None:
    run_and_abandon(root)
    training = Training(seed=None)
    engine = engine_of(training, root)
    assert engine.resume().changes == ()
    train(engine, training, start=30, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_a_damaged_birth_document_is_told_and_heals(root: Path) -> None:
    run_and_abandon(root)
    (birth,) = (root / "run" / "births").iterdir()
    birth.write_bytes(birth.read_bytes()[:-20])
    with pytest.raises(StateMismatch, match="cannot be told"):
        engine_of(Training(), root, strict=True).resume()
    training = Training()
    engine = engine_of(training, root)
    report = engine.resume()
    assert "birth document is damaged" in report.changes[0]
    train(engine, training, start=30, until=31)
    engine.close()
    engine = engine_of(Training(), root)
    assert engine.resume().changes == ()
    engine.close()


# ---------------------------------------------------------------------- segments


def two_trainings(root: Path, *, stop_at: int | None = None) -> Training | None:
    """A script with two trainings of the same object, 20 steps each; killed before step `stop_at`."""
    training = Training()
    for segment in (0, 1):
        engine = engine_of(training, root, segment=segment)
        report = engine.resume(step=20 * segment)
        if not report.finished:
            for step in range(report.step, 20 * segment + 20):
                if stop_at == step:
                    abandon(engine)
                    return None
                if engine.step(step):
                    engine.wait()
                training.step()
            engine.save(20 * segment + 20, reason="end", position="end")
        engine.close()
        training.rate /= 2  # what a script does between two trainings
    return training


@pytest.mark.parametrize("kills", [(5,), (20,), (33,), (5, 15, 25, 39)])
def test_a_script_with_two_trainings_goes_on_in_the_right_one(tmp_path: Path, kills: tuple[int, ...]) -> None:
    whole = two_trainings(tmp_path / "undisturbed")
    assert whole is not None
    for kill in kills:
        assert two_trainings(tmp_path / "killed", stop_at=kill) is None
    resumed = two_trainings(tmp_path / "killed")
    assert resumed is not None
    assert resumed.digest() == whole.digest()
    finished = two_trainings(tmp_path / "killed")
    assert finished is not None
    assert finished.count == 40


# ---------------------------------------------------------------------- saving


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
    seen = list[int | None]()
    capture = engine._source.capture

    def spying() -> object:
        pending = repository(root).pending()
        seen.append(pending.step if pending else None)
        return capture()

    engine._source.capture = spying  # type: ignore[method-assign, assignment]
    engine.save(12, reason="test", wait=True)
    engine.close()
    assert seen == [12]
    assert repository(root).pending() is None


def break_store(root: Path) -> Callable[[], None]:
    """Make every later write of a checkpoint fail; returns the repair. A file where a directory was."""
    steps, aside = root / "run" / "steps", root / "steps.aside"
    steps.rename(aside)
    steps.write_text("in the way")

    def repair() -> None:
        steps.unlink()
        aside.rename(steps)

    return repair


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


def test_a_save_that_cannot_be_begun_is_told_as_such_and_stays_due(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    pending = root / "run" / "pending.json"
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
    with pytest.raises(Fenced):
        engine.save(10, reason="test", wait=True)
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
    assert struct.unpack("<QQ", path.read_bytes()) == (25, 20)
    engine.close()


# ---------------------------------------------------------------------- reading


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


# ---------------------------------------------------------------------- bad input and other processes


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
