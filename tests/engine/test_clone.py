"""A run that goes on from another one's checkpoint: its state, own settings, own randomness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.runs import abandon, repository, run_and_abandon
from tests.engine.training import Training, source_of, train
from unbroken.engine.clone import Origin
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.errors import NoUsableCheckpoint, StateMismatch
from unbroken.repo.repository import Repository
from unbroken.types import Digest


def child_of(training: Training, root: Path, job: str = "child", **settings: Any) -> CheckpointEngine:
    chosen = Settings(root=root, job=job, every=Every(steps=10), **settings)
    return CheckpointEngine(source_of(training), chosen, environment={})


def origin_of(root: Path, index: int = 0) -> Origin:
    commit = repository(root).commits()[index]
    return Origin(root=root, job="run", sequence=commit.sequence, digest=commit.manifest_digest)


def draws(training: Training) -> bytes:
    return training.generator.bytes(32)


def test_it_has_the_parents_state_its_own_settings_and_its_own_randomness(root: Path) -> None:
    run_and_abandon(root)
    parent = Training()
    engine = child_of(parent, root, job="run")
    assert engine.resume().step == 30
    abandon(engine)

    child = Training(rate=0.25, seed=7)
    engine = child_of(child, root)
    report = engine.resume(origin=origin_of(root))
    engine.close()
    assert (report.step, report.restored, report.finished) == (30, True, False)
    assert "goes on at step 30 as a clone of commit" in report.line
    assert any("0.5 -> 0.25" in change for change in report.changes)
    assert child.rate == 0.25
    assert child.net.weights.tobytes() == parent.net.weights.tobytes()
    assert child.rows == parent.rows
    assert draws(child) != draws(parent)


def test_a_clone_made_twice_is_the_same_and_two_clones_differ(root: Path) -> None:
    run_and_abandon(root)
    drawn: list[bytes] = []
    for job in ("one", "two", "three"):
        child = Training()
        engine = child_of(child, root, job=job)
        engine.resume(origin=origin_of(root))
        engine.close()
        drawn.append(draws(child))
    again = Training(seed=None)
    engine = child_of(again, root, job="one")
    engine.resume(origin=origin_of(root))
    engine.close()
    assert draws(again) == drawn[0]
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("until", [30, 31, 45])
def test_killed_and_resumed_it_ends_as_the_undisturbed_clone(root: Path, tmp_path: Path, until: int) -> None:
    run_and_abandon(root)
    whole = Training(rate=0.25)
    engine = child_of(whole, tmp_path / "whole")
    train(engine, whole, start=engine.resume(origin=origin_of(root)).step, until=60)
    engine.close()

    killed = Training(rate=0.25)
    engine = child_of(killed, tmp_path / "killed")
    train(engine, killed, start=engine.resume(origin=origin_of(root)).step, until=until)
    abandon(engine)
    resumed = Training(rate=0.25, seed=3)
    engine = child_of(resumed, tmp_path / "killed")
    report = engine.resume()
    assert (report.step, report.changes) == ((until - 1) // 10 * 10 if until > 30 else 30, ())
    train(engine, resumed, start=report.step, until=60)
    engine.close()
    assert resumed.digest() == whole.digest()


def test_a_clone_of_a_finished_run_is_not_finished(root: Path) -> None:
    parent = Training()
    engine = child_of(parent, root, job="run")
    train(engine, parent, start=engine.resume().step, until=25)
    engine.save(25, reason="end of training", position="end")
    engine.close()
    engine = child_of(Training(), root)
    report = engine.resume(origin=origin_of(root))
    engine.close()
    assert (report.step, report.finished) == (25, False)


def test_it_does_not_matter_what_the_run_held_before(root: Path) -> None:
    run_and_abandon(root)
    before = Training(seed=5)
    engine = child_of(before, root)
    train(engine, before, start=engine.resume().step, until=55)
    abandon(engine)
    child = Training(seed=5)
    engine = child_of(child, root)
    assert engine.resume(origin=origin_of(root)).step == 30
    engine.close()
    assert len(child.rows) == 30
    newest = Repository.open(root, "child").commits()[0]
    assert (newest.step, newest.position) == (30, "step")


def test_lineage_stands_in_the_history(root: Path) -> None:
    run_and_abandon(root)
    engine = child_of(Training(), root)
    engine.resume(origin=origin_of(root))
    engine.close()
    parent = repository(root).commits()[0]
    started = Repository.open(root, "child").history()[0]
    assert f"cloned from commit {parent.sequence} of run ({parent.manifest_digest})" in started.reasons


def test_where_the_wished_one_is_gone_the_nearest_before_it_is_taken_by_name(root: Path) -> None:
    run_and_abandon(root)
    wished = origin_of(root)
    gone = Origin(root=root, job="run", sequence=wished.sequence, digest=Digest("b3:" + "0" * 64))
    child = Training()
    engine = child_of(child, root)
    report = engine.resume(origin=gone)
    engine.close()
    assert report.step == 20
    assert any("it is gone" in reason for reason in report.reasons)


def test_a_damaged_one_is_passed_over(root: Path) -> None:
    run_and_abandon(root)
    wished = origin_of(root)
    for document in (root / "run" / repository(root).commits()[0].directory).glob("policy_weights*"):
        document.write_bytes(b"{}")
    engine = child_of(Training(), root)
    report = engine.resume(origin=wished)
    engine.close()
    assert report.step == 20
    assert any("step 30" in reason for reason in report.reasons)


def test_a_parent_that_is_not_there_is_an_error_and_nothing_is_touched(root: Path) -> None:
    run_and_abandon(root)
    nowhere = Origin(
        root=root, job="nobody", sequence=origin_of(root).sequence, digest=Digest("b3:" + "0" * 64)
    )
    child = Training()
    before = child.net.weights.copy()
    with pytest.raises(NoUsableCheckpoint, match="commit 4 of nobody"):
        child_of(child, root).resume(origin=nowhere)
    assert np.array_equal(child.net.weights, before)


def test_a_parent_of_another_shape_does_not_fit(root: Path) -> None:
    run_and_abandon(root)
    child = Training(width=8)
    with pytest.raises(StateMismatch):
        child_of(child, root).resume(origin=origin_of(root))
    assert child.rows == []


def test_no_pin_is_left_in_the_parents_run(root: Path) -> None:
    run_and_abandon(root)
    engine = child_of(Training(), root)
    engine.resume(origin=origin_of(root))
    engine.close()
    assert repository(root).store.list("pins") == []
