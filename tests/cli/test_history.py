"""`unbroken history`: every start and end of a run, with what each had lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import unbroken
from tests.cli.test_doctor import begun, failed, killed
from tests.engine.runs import flip_newest
from tests.engine.training import Training, engine_of, train
from unbroken.errors import NoUsableCheckpoint, StateMismatch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def again(root: Path, **settings: object) -> None:
    """Start the run, train a little, and end in order."""
    training = Training()
    with engine_of(training, root, **settings) as engine:  # type: ignore[arg-type]
        report = engine.resume()
        train(engine, training, start=report.step, until=report.step + 5)


def lines(root: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = unbroken("history", root, "--json", cwd=root).json["history"]
    return found


def test_every_start_and_end_is_there_with_class_tier_step_and_loss(root: Path) -> None:
    begun(root)
    again(root)
    flip_newest(root, count=2)
    again(root)
    told = [(one["event"], one["fault"], one["tier"], one["step"], one["steps_lost"]) for one in lines(root)]
    assert [one["steps_lost_at_least"] for one in lines(root)] == [False, True, False, False, False]
    assert told == [
        ("start", None, "fresh", 0, None),
        ("start", "soft", "newest", 30, 7),
        ("end", None, None, 34, None),
        ("start", "data", "older", 10, 24),
        ("end", None, None, 14, None),
    ]
    starts = [one["seconds"] for one in lines(root) if one["event"] == "start"]
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in starts)


def test_a_person_reads_the_reasons_and_what_is_not_known(root: Path) -> None:
    killed(root)
    flip_newest(root)
    again(root)
    out = unbroken("history", root, cwd=root).out
    head, first, second, _ = out.splitlines()
    assert head.split()[:4] == ["when", "event", "last", "ended"]
    assert "first start" in first
    assert "data" in second
    assert "policy_weights.json is damaged" in second


def test_how_far_a_killed_process_had_come_is_not_made_up(root: Path) -> None:
    killed(root)
    again(root)
    assert "not known" in unbroken("history", root, cwd=root).out
    assert lines(root)[1]["steps_lost"] is None


def test_what_a_killed_process_has_lost_beyond_a_damaged_checkpoint_is_a_bound_from_below(root: Path) -> None:
    """It was killed somewhere after step 30: nobody knows where."""
    killed(root)
    flip_newest(root)
    assert "steps lost: at least 10" in unbroken("doctor", root, cwd=root).out
    again(root)
    start = lines(root)[1]
    assert (start["step"], start["steps_lost"], start["steps_lost_at_least"]) == (20, 10, True)
    assert "at least 10" in unbroken("history", root, cwd=root).out


def test_what_a_process_has_trained_after_its_last_save_is_lost_and_counted(root: Path) -> None:
    failed(root)
    again(root)
    assert [
        (one["fault"], one["step"], one["steps_lost"]) for one in lines(root) if one["event"] == "start"
    ] == [
        (None, 0, None),
        ("clean", 20, 5),
    ]


def test_a_start_that_was_refused_is_there_with_its_reason_and_hides_nothing(root: Path) -> None:
    killed(root)
    with pytest.raises(StateMismatch):
        engine_of(Training(width=8), root).resume()
    again(root)
    first, refused, second, _ = lines(root)
    assert (first["event"], refused["event"], second["event"]) == ("start", "refused", "start")
    assert "(16, 16) -> (8, 8)" in str(refused["reasons"])
    assert second["fault"] == "soft", "the one that trained was killed, whatever came between"
    assert "refused" in unbroken("history", root, cwd=root).out


def test_a_start_from_a_step_that_was_asked_for_says_so(root: Path) -> None:
    killed(root)
    again(root, resume=10)
    last = [one for one in lines(root) if one["event"] == "start"][-1]
    assert (last["step"], last["reasons"]) == (10, ["resume=10 asked for this step"])
    assert "resume=10 asked for this step" in unbroken("history", root, cwd=root).out


def test_many_reasons_are_cut_in_the_table_and_whole_for_a_machine(root: Path) -> None:
    killed(root)
    flip_newest(root, count=4)
    with pytest.raises(NoUsableCheckpoint) as raised:
        engine_of(Training(), root).resume()
    refused = lines(root)[-1]
    assert refused["reasons"] == [f"NoUsableCheckpoint: {raised.value}"]
    assert len(str(raised.value)) > 500
    row = unbroken("history", root, cwd=root).out.splitlines()[-1]
    assert "cannot go on" in row
    assert re.search(r"; and \d more \(--json\)$", row)
    assert len(row) < 400


def test_the_last_lines_can_be_asked_for(root: Path) -> None:
    killed(root)
    again(root)
    assert len(unbroken("history", root, "--last", "1", "--json", cwd=root).json["history"]) == 1
    assert unbroken("history", root, "--last", "0", cwd=root).code == 2
