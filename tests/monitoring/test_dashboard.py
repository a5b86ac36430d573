"""The dashboard in deploy/: what it asks for exists, and Prometheus understands it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.monitoring.prometheus import DEPLOY, promtool
from unbroken.engine.monitoring.metrics import GAUGES, names

DASHBOARD = DEPLOY / "grafana" / "unbroken.json"
WORDS = re.compile(r"\b[a-z_]{8,}(?=[{\[ )]|$)")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> Iterator[str]:
    for panel in panels():
        for target in panel.get("targets", []):
            yield target["expr"]


def test_every_metric_that_it_names_exists() -> None:
    functions = {"histogram_quantile", "increase"}
    named = {word for text in expressions() for word in WORDS.findall(text)} - functions
    assert named <= names()


def test_it_shows_every_gauge_of_a_public_name() -> None:
    shown = " ".join(expressions())
    public = [name for name in GAUGES if not name.startswith("unbroken_")]
    assert len(public) == 11
    assert [name for name in public if name not in shown] == []


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    every = [text.replace("$run", "ppo") for text in expressions()]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(every)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    said = promtool("check", "rules", "rules.yml", folder=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(every)} rules found" in said.stdout


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
