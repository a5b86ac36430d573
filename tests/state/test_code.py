"""What tells whether a function is still the same code, and what happens where nothing can tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unbroken.engine.changes import find_changes
from unbroken.state import code
from unbroken.state.code import code_hash, may_be_one_code
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture

POLICY = Policy()


class Learner:
    def __init__(self, rate: Callable[[], int]) -> None:
        self.rate = rate


def rising() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


def falling() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls -= 1
        return calls

    count.__qualname__ = rising().__qualname__
    return count


def other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on code is compiled to another bytecode, whose digests differ."""
    digest = code._digest
    monkeypatch.setattr(code, "_BYTECODE", code._BYTECODE + 1)
    monkeypatch.setattr(code, "_digest", lambda compiled: digest(compiled)[::-1])


def saved() -> tuple[Learner, Snapshot]:
    learner = Learner(rising())
    assert [learner.rate(), learner.rate()] == [1, 2]
    return learner, capture({"learner": learner}, POLICY)


def test_of_one_bytecode_the_digest_decides_and_of_two_nothing() -> None:
    assert may_be_one_code("7:aa", "7:aa")
    assert not may_be_one_code("7:aa", "7:bb")
    assert may_be_one_code("7:aa", "8:bb")
    assert may_be_one_code("", "")
    assert may_be_one_code("aa", "7:aa")
    assert not may_be_one_code("aa", "7:bb")
    assert code_hash(rising().__code__) != code_hash(falling().__code__)


def test_what_a_function_holds_comes_back_on_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    _, snapshot = saved()
    other_python(monkeypatch)
    learner = Learner(rising())
    found = plan(snapshot, {"learner": learner}, POLICY)
    assert found.differences == []
    found.apply()
    assert learner.rate() == 3


def test_other_code_keeps_what_it_holds_and_is_named() -> None:
    _, snapshot = saved()
    learner = Learner(falling())
    found = plan(snapshot, {"learner": learner}, POLICY)
    assert [(d.level, d.place) for d in found.differences] == [("changed", "learner/rate")]
    found.apply()
    assert learner.rate() == -1


def test_another_python_changes_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, before = saved()
    other_python(monkeypatch)
    after = capture({"learner": learner}, POLICY)
    assert list(compare(before, after)) == []
    assert find_changes(before, after, before) == []
    other = capture({"learner": Learner(falling())}, POLICY)
    assert find_changes(after, other, after)[0].place == "learner/rate"
    assert next(leaf.place for leaf in compare(after, other)) == "learner/rate"
