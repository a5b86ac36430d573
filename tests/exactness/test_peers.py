"""The comparison with other libraries: its page shows the figures that were measured, and they can be measured again."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from exactness.peers.__main__ import DATA, PAGE, ROOT, TITLES, measure, measured
from exactness.peers.trainings import ALL

FOUND: dict[str, Any] = json.loads(DATA.read_text())
TEXT = PAGE.read_text()


def test_the_page_shows_the_figures_of_the_file() -> None:
    assert f"\n{measured(FOUND)}\n" in TEXT


def test_every_training_was_measured_and_has_its_line() -> None:
    assert FOUND["rows"].keys() == TITLES.keys() == ALL.keys()


def test_ours_differ_nowhere_and_all_others_do() -> None:
    for name, row in FOUND["rows"].items():
        ours = name.endswith("unbroken")
        assert row["equal_bits"] == ours, name
        assert (row["first_different_step"] is None) == ours, name
        assert (row["weights_apart"] == 0) == ours, name


def test_the_seconds_it_names_stand_in_the_benchmarks() -> None:
    (section,) = re.findall(r"^## Speed\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    named = re.findall(r"\b(\d+\.\d+)(?= s\b|, | of\b)", section)
    assert len(named) >= 8
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [seconds for seconds in named if f"| {seconds} (" not in benchmarks] == []


@pytest.mark.exactness
@pytest.mark.parametrize("name", ["sb3_dqn", "sb3_dqn_unbroken", "dcp", "loop_unbroken"])
def test_measured_again_it_comes_to_the_same(name: str) -> None:
    pytest.importorskip("stable_baselines3")
    assert measure(name)["equal_bits"] == FOUND["rows"][name]["equal_bits"]
