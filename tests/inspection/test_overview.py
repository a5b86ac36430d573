"""A run at a glance: how it stands, what its saves say, where it was interrupted, what its checkpoints take."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from tests.browser.runs import make_damaged
from tests.cli.test_doctor import begun, finished, killed
from tests.engine.children import die, in_child
from tests.engine.runs import flip_newest, repository
from tests.engine.training import Training, engine_of, train
from unbroken.engine.schedule import Every
from unbroken.format import layout
from unbroken.inspection.makeup import makeup
from unbroken.inspection.overview import RunOverview, interruptions, overview_of
from unbroken.inspection.target import run_of
from unbroken.repo.lock import read_lease
from unbroken.repo.repository import Repository
from unbroken.repo.seal import seal

LATER = 2e10
"""A moment long after every test."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def seen(root: Path, *, now: float = LATER) -> RunOverview:
    return overview_of(run_of(str(root)), now=now)


def go_on(root: Path, *, steps: int = 15, **settings: object) -> None:
    """Start the run, train on, and close it."""
    training = Training()
    with engine_of(training, root, **settings) as engine:  # type: ignore[arg-type]
        report = engine.resume()
        train(engine, training, start=report.step, until=report.step + steps)


def test_a_run_whose_process_was_killed_has_crashed_whatever_the_clock_says(root: Path) -> None:
    killed(root)
    assert seen(root, now=0.0).state == seen(root).state == "crashed"


def test_a_run_that_a_process_works_on_is_running(root: Path) -> None:
    training = Training()
    with engine_of(training, root) as engine:
        engine.resume()
        train(engine, training, start=0, until=12)
        found = seen(root)
        assert (found.state, found.process.split()[:2]) == ("running", ["process", str(os.getpid())])


def test_a_run_that_was_closed_before_its_end_is_stopped_and_one_at_its_end_is_finished(root: Path) -> None:
    go_on(root)
    assert seen(root).state == "stopped"
    finished(root.with_name("other"))
    assert seen(root.with_name("other")).state == "finished"


def test_a_process_of_another_machine_is_stale_once_it_has_given_no_sign_for_long(root: Path) -> None:
    killed(root)
    store = repository(root).store
    lease = read_lease(store)
    assert lease is not None
    store.put(layout.LEASE, seal(msgspec.structs.replace(lease, host="elsewhere", boot_id="another")))
    newest = repository(root).commits()[0].time
    assert seen(root, now=newest + 60).state == "running"
    found = seen(root, now=newest + 86_400)
    assert (found.state, "elsewhere" in found.state_why) == ("stale", True)


def test_a_kill_in_the_middle_of_a_save_says_how_many_steps_were_lost(root: Path) -> None:
    begun(root)
    go_on(root)
    found = seen(root)
    assert [(one.event, one.interrupted, one.at) for one in found.restarts] == [
        ("start", False, 0),
        ("start", True, 30),
        ("end", False, 44),
    ]
    restart = found.restarts[1]
    assert (restart.fault, restart.tier, restart.steps_lost) == ("soft", "newest", 7)
    assert restart.seconds > 0
    assert [(one.first, one.last) for one in found.lost] == [(30, 37)]


def test_steps_of_which_no_word_was_left_are_not_known_rather_than_none(root: Path) -> None:
    killed(root)
    go_on(root)
    found = seen(root)
    assert [one.steps_lost for one in found.restarts if one.interrupted] == [None]
    assert [(one.first, one.last) for one in found.lost] == [(30, None)]


def test_a_run_that_has_crashed_counts_that_interruption_before_anybody_goes_on(root: Path) -> None:
    killed(root)
    found = seen(root)
    cut = interruptions(found.story, found.state)
    assert (cut.count, cut.unknown, cut.steps_lost) == (1, 1, None)
    go_on(root)
    found = seen(root)
    cut = interruptions(found.story, found.state)
    assert (cut.count, dict(cut.kinds), cut.steps_lost) == (1, {"soft": 1}, None)


def test_a_start_that_finds_its_training_finished_is_no_interruption(root: Path) -> None:
    def body() -> None:
        training = Training()
        engine = engine_of(training, root)
        engine.resume()
        train(engine, training, start=0, until=25)
        engine.save(25, reason="end of training", position="end", wait=True)
        die()

    assert in_child(body) == -signal.SIGKILL
    for _ in range(2):
        training = Training()
        with engine_of(training, root) as engine:
            engine.resume()
    found = seen(root)
    assert [(one.event, one.idle) for one in found.restarts if one.event == "start"] == [
        ("start", False),
        ("start", True),
        ("start", True),
    ]
    assert interruptions(found.story, found.state).count == 0
    assert found.lost == ()


def test_saves_outlive_their_checkpoints_and_those_that_training_went_back_before_are_left_behind(
    root: Path,
) -> None:
    killed(root)
    flip_newest(root, count=2)
    go_on(root, keep_last=1)
    found = seen(root)
    assert [(point.step, point.abandoned) for point in found.points] == [
        (0, False),
        (10, False),
        (20, True),
        (30, True),
        (20, False),
    ]
    assert found.restarts[1].tier == "older"
    # It went on after the checkpoint of step 30, which is damaged, nobody knows how far.
    assert (found.restarts[1].steps_lost, found.restarts[1].at_least) == (20, True)
    assert interruptions(found.story, found.state).unknown == 1
    assert {row.step for row in found.checkpoints} < {point.step for point in found.points}
    assert found.newest is not None
    assert found.newest.step == 20


def test_a_second_training_of_one_script_stands_after_the_first_on_the_axis(root: Path) -> None:
    def body() -> None:
        training = Training()
        with engine_of(training, root) as engine:
            engine.resume()
            train(engine, training, start=0, until=25)
            engine.save(25, reason="end of training", position="end")
        engine = engine_of(training, root, segment=1)
        engine.resume()
        train(engine, training, start=0, until=15)
        die()

    assert in_child(body) == -signal.SIGKILL
    points = seen(root).points
    assert [point.step for point in points] == [0, 10, 20, 25, 0, 10]
    assert [point.at for point in points] == [0, 10, 20, 25, 25, 35]
    assert not any(point.abandoned for point in points)


def test_the_budget_of_a_run_is_the_one_it_was_told(root: Path) -> None:
    go_on(root, every=Every(steps=10, max_overhead=0.05))
    go_on(root.with_name("other"), every=Every(steps=10))
    assert seen(root).budget == 0.05
    assert seen(root.with_name("other")).budget is None


def test_damaged_checkpoints_are_rows_that_say_so_and_the_whole_ones_have_sizes(tmp_path: Path) -> None:
    make_damaged(tmp_path / "damaged")
    newest, middle, oldest = seen(tmp_path).checkpoints
    assert (newest.state, middle.state, oldest.state) == ("damaged", "damaged", "good")
    assert "missing" in newest.problem
    assert newest.alone is None
    assert oldest.alone is not None
    assert oldest.alone > 0


def test_what_two_checkpoints_need_is_shared_and_goes_with_neither(root: Path) -> None:
    training = Training(width=64)
    with engine_of(training, root) as engine:
        engine.resume()
        engine.save(1, reason="it was time", wait=True)
        training.rows.append(1.0)
        engine.save(2, reason="it was time", wait=True)
    weights = 64 * 64 * 8
    newest, older = seen(root).checkpoints[:2]
    assert newest.shared == older.shared
    assert newest.shared is not None
    assert newest.alone is not None
    assert newest.raw is not None
    assert newest.raw > weights > newest.alone


def test_a_run_without_a_checkpoint_is_empty(root: Path) -> None:
    Repository.open(root, "run", create=True)
    found = seen(root)
    assert (found.state, found.points, found.checkpoints, found.newest) == ("empty", (), (), None)


def test_a_checkpoint_is_made_of_components_and_these_of_their_largest_arrays(root: Path) -> None:
    training = Training(width=64)
    with engine_of(training, root) as engine:
        engine.resume()
        engine.save(1, reason="it was time", wait=True)
    found = repository(root)
    shares = makeup(found, found.commits()[0])
    weights = next(share for share in shares if share.component == "policy_weights")
    assert weights.pieces[0].nbytes == 64 * 64 * 8
    assert "weights" in weights.pieces[0].place
    assert sum(piece.nbytes for piece in weights.pieces) == weights.nbytes
    assert shares[0] is weights
    assert weights.fidelity == "exact"


def test_looking_changes_no_file_of_the_run(root: Path) -> None:
    begun(root)
    before = files(root)
    seen(root)
    assert files(root) == before


def files(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
