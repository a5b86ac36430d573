"""The comparison with other libraries: its page shows the figures that were measured, and they can be measured again."""

from __future__ import annotations

import re

import pytest

from exactness.peers.__main__ import PACKAGES, PAGE, ROOT, TITLES, first_different, kept, measure, shown
from exactness.peers.trainings import ALL

ROWS = kept()
TEXT = PAGE.read_text()


def test_the_page_shows_the_figures_of_the_file() -> None:
    assert f"\n{shown(ROWS)}\n" in TEXT


def test_every_training_was_measured_and_has_its_line() -> None:
    assert ROWS.keys() == TITLES.keys() == ALL.keys()


def test_every_row_says_where_its_own_figures_come_from() -> None:
    for name, row in ROWS.items():
        assert re.fullmatch(r"[0-9a-f]{7,40}", row.measured.commit), name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row.measured.date), name
        assert row.measured.versions.keys() == {*PACKAGES}, name
        assert re.match(r"\d+ cores of \w", row.measured.machine), name


def test_ours_differ_nowhere_and_all_others_do() -> None:
    for name, row in ROWS.items():
        ours, found = name.endswith("unbroken"), row.figures
        assert found.equal_bits == ours, name
        assert (found.first_different_step is None) == ours, name
        assert (found.weights_apart == 0) == ours, name
        assert 0 < found.resumed_at < found.steps, name


def test_a_step_that_is_another_one_missing_or_too_many_is_found() -> None:
    assert first_different(["a", "b"], ["a", "c"]) == 2
    assert first_different(["a", "b"], ["a"]) == 2
    assert first_different(["a"], ["a", "b"]) == 2
    assert first_different(["a", "b"], ["a", "b"]) is None


def test_the_seconds_it_names_stand_in_the_benchmarks() -> None:
    (section,) = re.findall(r"^## Speed\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    named = re.findall(r"\b(\d+\.\d+)(?= s\b|, | of\b)", section)
    assert len(named) >= 8
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [seconds for seconds in named if f"| {seconds} (" not in benchmarks] == []


@pytest.mark.exactness
@pytest.mark.parametrize(
    "name", ["sb3_dqn", "sb3_dqn_unbroken", "dcp", "loop_unbroken", "lightning", "lightning_unbroken"]
)
def test_measured_again_it_comes_to_the_same(name: str) -> None:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("lightning")
    found, before = measure(name), ROWS[name].figures
    assert (found.equal_bits, found.first_different_step) == (before.equal_bits, before.first_different_step)
    assert (found.resumed_at, found.steps) == (before.resumed_at, before.steps)
