"""docs/torture.md, and the command that writes it."""

from __future__ import annotations

import os
import re
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest

from tests.torture.test_slice import EVERY
from torture import __main__ as command
from torture import bench
from torture.case import Case, Outcome
from torture.page import page
from torture.recovery import MOST_OPERATIONS, Lost, Wrong
from torture.returning_faults import TooMany

PAGE = Path(__file__).parents[2] / "docs" / "torture.md"


def takes(calls: int, _folder: Path) -> int:
    return calls


def raises(error: Exception, _folder: Path) -> int:
    raise error


def dies(folder: Path) -> int:
    folder.rmdir()  # nobody else would
    os._exit(3)


CASES = [
    Case("good", "first", "1", partial(takes, 7)),
    Case("good", "second", "2", partial(takes, 9)),
    Case("bad", "third", "3", partial(raises, Lost("a commit is gone"))),
    Case("bad", "fourth", "4", partial(raises, Wrong("left over"))),
    Case("bad", "fifth", "5", partial(raises, TooMany("call 7001"))),
    Case("bad", "sixth", "6", partial(raises, KeyError("no error of ours"))),
]


def rows(text: str) -> dict[str, list[int]]:
    """Return the table by kind."""
    found = re.findall(r"^\| (.+?) \|((?: \d+ \|){6})$", text, re.MULTILINE)
    return {kind: [int(number) for number in numbers.split("|")[:-1]] for kind, numbers in found}


def test_what_came_of_each_case_is_told_by_kind() -> None:
    outcomes = bench.run(CASES, jobs=2)
    assert [outcome.verdict for outcome in outcomes] == [
        "recovered", "recovered", "lost", "wrong", "hang", "wrong",
    ]  # fmt: skip
    text = page(bench.summed(CASES, outcomes), commit="abc", seed=3, bound=10, left_out=["mounting"])
    assert rows(text) == {"good": [2, 2, 0, 0, 0, 9], "bad": [4, 0, 1, 2, 1, 0]}
    assert "| commits lost | 1 |" in text
    assert "- mounting" in text


def test_the_command_fails_where_something_was_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "gathered", lambda *, seed: CASES)
    assert command.main(["--only", "bad"]) == 1
    assert "bad, third: lost: a commit is gone" in capsys.readouterr().out
    assert command.main(["--only", "good"]) == 0
    assert capsys.readouterr().out.endswith("2 distinct faults, 2 recovered\n")


def test_a_process_that_dies_is_an_error_and_waited_for_no_longer() -> None:
    with pytest.raises(BrokenProcessPool):
        bench.run([*CASES, Case("fatal", "seventh", "7", dies)], jobs=2)


def test_the_page_says_what_a_run_would_write() -> None:
    """Its words stand in `torture/page.py`: a hand that changes them here changes what the next run writes over."""
    lines = bench.summed(CASES[:1], [Outcome("recovered", 7)])
    always, other = (
        page(lines, commit=commit, seed=0, bound=bound, left_out=[]).split("\n\n")
        for commit, bound in (("abc", 10), ("def", 11))
    )
    there = PAGE.read_text()
    for paragraph in always:
        if paragraph in other and not paragraph.startswith(("|", "## By kind", "`make torture` does")):
            assert paragraph.strip() in there


def test_the_page_is_what_a_full_run_has_written_with_nothing_lost_or_wrong_or_hanging() -> None:
    there = PAGE.read_text()
    lines = [
        bench.Line(kind=kind, faults=n, recovered=r, lost=lost, wrong=w, hangs=h, most_calls=most)
        for kind, (n, r, lost, w, h, most) in rows(there).items()
    ]
    told = re.search(r"^\| code \| `(.+)`, seed (\d+) \|$", there, re.MULTILINE)
    assert told is not None
    left_out = re.findall(r"^- (.+: .+ is not permitted here)$", there, re.MULTILINE)
    assert there == page(lines, commit=told[1], seed=int(told[2]), bound=MOST_OPERATIONS, left_out=left_out)
    assert {line.kind for line in lines} | {reason.split(":")[0] for reason in left_out} >= EVERY.keys()
    for line in lines:
        assert (line.recovered, line.lost, line.wrong, line.hangs) == (line.faults, 0, 0, 0), line.kind
    assert sum(line.faults for line in lines) >= 10_000
