"""The page, and the command that writes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from torture import __main__ as command
from torture import bench
from torture.case import Case
from torture.page import page
from torture.recovery import Lost, Wrong
from unbroken.testing.returning_faults import TooMany


def raises(error: Exception) -> Callable[[Path], int]:
    def run(_folder: Path) -> int:
        raise error

    return run


CASES = [
    Case("good", "first", "1", lambda _: 7),
    Case("good", "second", "2", lambda _: 9),
    Case("bad", "third", "3", raises(Lost("a commit is gone"))),
    Case("bad", "fourth", "4", raises(Wrong("left over"))),
    Case("bad", "fifth", "5", raises(TooMany("call 7001"))),
    Case("bad", "sixth", "6", raises(KeyError("no error of ours"))),
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
