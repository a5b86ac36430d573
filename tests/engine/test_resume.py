"""Where a run goes on from, through a real repository on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.runs import abandon, break_store, flip_newest, repository, run_and_abandon, steps_of
from tests.engine.training import Training, engine_of, train, undisturbed
from unbroken.engine.faults import FaultKind
from unbroken.engine.recovery import Tier
from unbroken.errors import (
    NoUsableCheckpoint,
    SaveFailed,
    StateMismatch,
)
from unbroken.repo.retention import Best


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


def test_must_needs_a_checkpoint(root: Path) -> None:
    with pytest.raises(NoUsableCheckpoint, match="must") as raised:
        engine_of(Training(), root, resume="must").resume()
    assert str(root) in str(raised.value), "the place that was looked at"
    assert "damaged" not in str(raised.value)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(root: Path) -> None:
    run_and_abandon(root)
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint has step 15") as raised:
        engine_of(Training(), root, resume=15).resume()
    assert "0, 10, 20, 30" in str(raised.value)
    assert "damaged" not in str(raised.value)


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
    assert engine.resume().line.startswith("unbroken: goes on at step 20 from the step that was asked for · ")
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
    assert engine.resume().line.startswith("unbroken: goes on at step 20 from the best checkpoint · ")
    engine.close()


def test_a_metric_without_a_number_does_not_spoil_the_checkpoint(root: Path) -> None:
    engine = engine_of(Training(), root)
    engine.resume()
    engine.save(3, reason="test", metrics={"score": float("nan"), "loss": 2.0}, wait=True)
    meta = repository(root).meta(repository(root).commits()[0])
    engine.close()
    assert meta.metrics == {"loss": 2.0}
    assert "metric score was nan" in meta.notes


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
