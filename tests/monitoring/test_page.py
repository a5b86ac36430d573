"""docs/monitoring.md names every metric and every alert, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.monitoring.test_rules import ALERTS
from unbroken.engine.monitoring.metrics import COUNTERS, GAUGES, HISTOGRAMS

PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
FIRST_CELLS = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def test_each_metric_and_each_alert_has_its_line_and_nothing_else_has_one() -> None:
    assert sorted(FIRST_CELLS) == sorted([*GAUGES, *COUNTERS, *HISTOGRAMS, *ALERTS])


def test_the_kind_that_it_says_is_the_kind() -> None:
    kinds = dict(re.findall(r"^\| `(unbroken_\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    wanted = {
        **dict.fromkeys((name for name in GAUGES if name.startswith("unbroken_")), "gauge"),
        **dict.fromkeys(COUNTERS, "counter"),
        **dict.fromkeys(HISTOGRAMS, "histogram"),
    }
    assert kinds == wanted


def test_what_it_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE)
    folder = Path(__file__).parents[2] / "docs"
    assert len(links) == 4
    assert [link for link in links if not (folder / link).exists()] == []
