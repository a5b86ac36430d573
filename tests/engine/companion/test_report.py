"""Errors cross from one process to the other as what they are."""

from __future__ import annotations

import pytest

from unbroken import errors
from unbroken.engine.companion import report
from unbroken.engine.companion.report import FailedReport
from unbroken.errors import InternalError, UnbrokenError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, UnbrokenError)]
FACTS = {
    "key": "commits/1",
    "epoch": 3,
    "digest": "b3:00",
    "place": "model/x",
    "places": ("a", "b"),
    "differences": ("one",),
    "reasons": ("r",),
    "log": ("last words",),
    "ranks": (1, 3),
    "full": True,
    "servers": ("judge",),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_with_all_that_it_carries(kind: type[UnbrokenError]) -> None:
    error = kind("It failed.", hint="Try again.")
    given = {name: FACTS[name] for name in vars(error).keys() - {"message", "hint"}}
    error = kind("It failed.", hint="Try again.", **given)
    said = report.decode(report.encode(FailedReport.of(error, ["0e1"])))
    assert isinstance(said, FailedReport)
    assert said.condemned == ["0e1"]
    back = said.error()
    assert type(back) is kind
    assert vars(back) == vars(error)
    assert str(back) == str(error)


def test_what_is_none_of_ours_is_a_bug_and_names_itself() -> None:
    back = FailedReport.of(ZeroDivisionError("by zero"), ()).error()
    assert isinstance(back, InternalError)
    assert "ZeroDivisionError: by zero" in str(back)
