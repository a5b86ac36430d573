"""Two checkpoints are compared by what happened, not by which process it was, when, or under which random id."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.adapters.nemo_gym.layered_examples import (
    call,
    cards,
    component,
    counter,
    finished,
    segment,
    snapshot,
    statuses,
    unfinished,
)
from unbroken.adapters.nemo_gym.control import Recovery, Status
from unbroken.adapters.nemo_gym.view.layers import layered
from unbroken.adapters.nemo_gym.view.tree import ROOT, as_component, node
from unbroken.report.comparison import ComponentComparison, compared
from unbroken.report.tree import leaves
from unbroken.state.nodes import Dict, Float, Int, List
from unbroken.state.snapshot import Component


def difference(a: Component, b: Component, *, wall_clock: bool = False) -> ComponentComparison:
    (row,) = compared(snapshot(a), snapshot(b), wall_clock=wall_clock)
    return row


def places(row: ComponentComparison) -> list[str]:
    return [leaf.place for leaf in row.differences]


def others() -> dict[str, Status]:
    """The same servers, in other processes that came back from a crash."""
    news: dict[str, Any] = {
        "pid": 99,
        "phase": "open",
        "lineage": "other",
        "epoch": 4,
        "recovery": Recovery(source="checkpoint", sessions=2, redone=7),
        "model_calls": 1,
        "replayed": 3,
    }
    return {name: msgspec.structs.replace(one, **news) for name, one in statuses().items()}


def test_all_of_the_document_is_in_the_tree() -> None:
    tree = as_component(layered(component(), None))
    assert list(tree.roots) == [ROOT]
    told = {leaf.place: leaf.value for leaf in leaves(tree)}
    assert told["gym/environment/session_states/counter~17-0/tool_history/1/result/success"] == "True"
    assert told["gym/resources/counter/connection_state/capability"] == "'snapshot_with_exclusions'"


def test_the_same_state_in_other_processes_is_equal() -> None:
    row = difference(component(), component(of=others()))
    assert places(row) == []
    assert row.leaves > 50


def test_processes_differ_for_who_wants_to_know() -> None:
    row = difference(component(), component(of=others()), wall_clock=True)
    assert "gym/resources/counter/connection_state/pid" in places(row)
    assert "gym/agents/simple/extensions/unbroken/process/replayed" in places(row)


def test_when_it_was_is_no_difference_and_neither_is_the_sessions_random_id() -> None:
    a = component({"counter": [segment(counter("one"))]})
    b = component({"counter": [segment(counter("other", started=1_766_000_000.0))]})
    assert places(difference(a, b)) == []
    assert "gym/environment/session_states/counter~17-0/tool_history/0/started" in places(
        difference(a, b, wall_clock=True)
    )


def test_several_sessions_of_one_rollout_are_told_apart_by_their_order() -> None:
    first, second = counter("b", started=1.7e9), counter("a", count=9, started=1.8e9)
    tree = as_component(layered(component({"counter": [segment(first, second)]}), None))
    told = {leaf.place: leaf.value for leaf in leaves(tree)}
    base = "gym/environment/session_states/counter~17-0"
    assert told[f"{base}/context/session_id_to_counter"] == "5"
    assert told[f"{base}#2/context/session_id_to_counter"] == "9"


def test_a_session_without_a_rollout_keeps_its_id() -> None:
    tree = as_component(layered(component({"counter": [segment(counter("lonely", rollout=""))]}), None))
    assert any("/session_states/lonely/" in leaf.place for leaf in leaves(tree))


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        (counter(count=6), "gym/environment/session_states/counter~17-0/context/session_id_to_counter"),
        (counter(count=6), "gym/environment/session_states/counter~17-0/extensions/unbroken/digest"),
        (counter(count=6), "gym/environment/session_states/counter~17-0/tool_history/1/arguments/count"),
    ],
)
def test_another_state_is_another(changed: Any, place: str) -> None:
    row = difference(component({"counter": [segment(counter())]}), component({"counter": [segment(changed)]}))
    assert place in places(row)


def test_a_pickle_differs_by_its_digest_and_not_by_its_bytes() -> None:
    one, same, other = cards(), cards(), cards()
    assert one.state is not None
    same.state = msgspec.structs.replace(one.state, data=b"the same in another order", seal=b"x" * 16)
    other.state = msgspec.structs.replace(one.state, digest="c" * 64)
    a = component({"cards": [segment(one)]})
    grown = places(difference(a, component({"cards": [segment(same)]})))
    assert grown == []
    assert places(difference(a, component({"cards": [segment(other)]}))) != []


def test_an_attempt_more_is_no_difference_and_a_result_that_is_missing_is_one() -> None:
    again = finished()
    again.attempt = 3
    a = component({"simple": [segment(finished(), unfinished())]})
    assert places(difference(a, component({"simple": [segment(again, unfinished())]}))) == []
    assert places(difference(a, component({"simple": [segment(finished())]})))


def test_the_number_of_the_attempt_in_a_row_is_no_difference() -> None:
    def under(attempt: int, count: int) -> Component:
        record = counter()
        row = {"count": count, "_ng_rollout_id": "7-0", "_ng_attempt_index": attempt}
        record.calls = [call("/verify", row, {"reward": 1.0, "row": row}, revision=1, id=f"{attempt}#1")]
        return component({"counter": [segment(record)]})

    assert places(difference(under(0, 1), under(2, 1))) == []
    changed = places(difference(under(0, 1), under(2, 9)))
    assert [place.rpartition("/")[2] for place in changed] == ["count", "count"]


def test_plain_values_become_nodes() -> None:
    assert node({"a": [1, 2.5, None, True, "x"]}) == Dict(v={"a": List(v=[1, 2.5, None, True, "x"])})
    assert node(2**70) == Int(v=hex(2**70))
    assert node(float("inf")) == Float(v="inf")
    assert node(-(2**63)) == -(2**63)
