"""How the last process ended, told from its traces."""

from __future__ import annotations

import pytest

from unbroken.engine.faults import EndOfProcess, FaultKind, Traces, classify, with_damage


@pytest.mark.parametrize(
    ("traces", "kind"),
    [
        (Traces(known=False), FaultKind.NONE),
        (Traces(known=True, closed=True), FaultKind.CLEAN),
        (Traces(known=True, closed=True, same_host=False), FaultKind.CLEAN),
        (Traces(known=True), FaultKind.SOFT),
        (Traces(known=True, same_boot=False), FaultKind.HARD),
        (Traces(known=True, same_host=False), FaultKind.HARD),
    ],
)
def test_the_class_follows_from_the_traces(traces: Traces, kind: FaultKind) -> None:
    assert classify(traces).kind is kind


def test_a_save_that_was_under_way_is_told() -> None:
    fault = classify(Traces(known=True, pending_step=1200, newest_step=1000))
    assert "saving step 1,200" in fault.detail
    assert "saving" not in classify(Traces(known=True, pending_step=1000, newest_step=1000)).detail


def test_damage_is_a_class_of_its_own_and_keeps_what_was_known() -> None:
    soft = EndOfProcess(FaultKind.SOFT, "process 7 is gone")
    fault = with_damage(soft, ("commit 3: one byte is wrong", "commit 2: gone"))
    assert fault.kind is FaultKind.DATA
    assert (
        str(fault) == "data: commit 3: one byte is wrong (and 1 more); before that, soft: process 7 is gone"
    )
    assert with_damage(soft, ()) is soft
