"""The page says what was found, and the page that lies in docs is one of this matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from exactness import page
from exactness.__main__ import PAGE
from exactness.matrix import BY_KEY
from exactness.records import Machine, Results, Row

PLACE = Machine(cpu="a processor", cores=2, kernel="6", versions={"python": "3.11"})


def row(key: str, **more: Any) -> Row:
    about: dict[str, Any] = {
        "group": key.partition("/")[0], "algorithm": "PPO", "environment": "Env-v0", "around": "", "claim": "exact",
        "holds": True, "date": "2026-01-01 00:00 UTC", "commit": "abc",
    }  # fmt: skip
    return Row(key=key, **{**about, **more})


def results(*rows: Row) -> Results:
    return Results(
        date="2026-01-01 00:00 UTC", commit="abc", seconds=1.0, seed=7, jobs=2,
        machine=PLACE, rows=list(rows),
    )  # fmt: skip


def line_of(text: str, environment: str) -> str:
    (line,) = [line for line in text.splitlines() if f"| {environment} |" in line]
    return line


def test_each_verdict_stands_in_its_row_with_its_reason() -> None:
    text = page.render(
        results(
            row("a/one", environment="One"),
            row("a/two", environment="Two", claim="approximate", reason="it reads | the clock"),
            row("b/three", environment="Three", holds=False, reason="weights differ"),
        )
    )
    assert line_of(text, "One").endswith("| exact |")
    assert line_of(text, "Two").endswith("| approximate: it reads \\| the clock |")
    assert line_of(text, "Three").endswith("| **does not hold**: weights differ |")
    assert "3 cells: 1 exact, 1 approximate, and said to be, 1 **not as claimed**." in text
    assert "## A\n" in text and "## B\n" in text


def test_every_row_has_as_many_columns_as_its_head() -> None:
    lines = page.render(results(row("a/one"))).splitlines()
    tables = [line.replace("\\|", "") for line in lines if line.startswith("| algorithm") or "Env-v0" in line]
    assert len({line.count("|") for line in tables}) == 1


def test_later_rows_take_the_place_of_earlier_ones_in_the_order_of_the_matrix() -> None:
    earlier = results(row("a/one", holds=False), row("a/gone"), row("a/three"))
    fresh = results(row("a/two", commit="def"), row("a/one", commit="def"))
    both = page.merged(earlier, fresh, order=["a/one", "a/two", "a/three"])
    assert [(one.key, one.holds, one.commit) for one in both.rows] == [
        ("a/one", True, "def"), ("a/two", True, "def"), ("a/three", True, "abc"),
    ]  # fmt: skip
    text = page.render(both)
    assert "* 1 cell on 2026-01-01 at commit abc.\n* 2 cells on 2026-01-01 at commit def." in text


def test_the_page_in_docs_is_what_the_data_beside_it_gives() -> None:
    found = published()
    assert PAGE.read_text(encoding="utf-8") == page.render(found)


def test_the_page_in_docs_has_every_cell_and_each_is_as_claimed() -> None:
    rows = {one.key: one for one in published().rows}
    assert rows.keys() == BY_KEY.keys()
    assert [key for key, one in rows.items() if not one.holds] == []
    assert [key for key, one in rows.items() if one.claim != BY_KEY[key].claim] == []


def test_the_page_in_docs_is_of_code_that_was_committed() -> None:
    assert {one.commit for one in published().rows if not one.commit or one.commit.endswith("+")} == set()


def published() -> Results:
    data: Path = PAGE.with_suffix(".json")
    return msgspec.json.decode(data.read_bytes(), type=Results)
