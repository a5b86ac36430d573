"""Whose component is whose, and numbers of objects that are those of one process alone."""

from __future__ import annotations

import numpy as np
import pytest

from unbroken.format.document import encode
from unbroken.state.diff import compare
from unbroken.state.nodes import Array, Dict, Ref, Value
from unbroken.state.parts import labelled, numbered_together, rank_name, ranks_in, split_name, view
from unbroken.state.places import index
from unbroken.state.snapshot import Component, Promise, Snapshot
from unbroken.types import Fidelity

REPLICATED = frozenset({"policy_weights", "optimizer_states"})


def state(*, own: int, ahead: int = 0) -> Snapshot:
    """Return a state as a walk gives it: numbers run through all components, after `ahead` objects of others.

    Each component has an array that it refers to a second time.
    """
    number = ahead
    components: dict[str, Component] = {}
    for name, content in (("replay_buffer", own), ("policy_weights", 1), ("optimizer_states", 2)):
        number += 1
        roots: dict[str, Value] = {
            name: Dict(v={"a": Array(d="|u1", s=(4,), b=0, id=number), "again": Ref(to=number)})
        }
        blob = np.full(4, content, np.uint8)
        components[name] = Component(name=name, roots=roots, blobs=[blob])
    promises = {name: Promise(Fidelity.EXACT) for name in components}
    return Snapshot(components, promises=promises)


def together(*ranks: Snapshot) -> Snapshot:
    """Return what a checkpoint of these ranks holds: what all share from the first."""
    found = Snapshot({})
    for rank, snapshot in enumerate(ranks):
        for name, part in labelled(snapshot, rank, replicated=REPLICATED).components.items():
            if rank == 0 or split_name(name)[1] is not None:
                found.components[name] = part
    return found


@pytest.mark.parametrize(
    "name", ["replay_buffer", "a@b", "x@rank", "x@rankone", "@rank", "x@rank-1", "x@rank1 "]
)
def test_a_name_without_a_rank_is_everybodys(name: str) -> None:
    assert split_name(name) == (name, None)


@pytest.mark.parametrize(("name", "rank"), [("replay_buffer", 0), ("a@rank3", 12), ("x@rank", 7)])
def test_a_label_is_taken_off_as_it_was_put_on(name: str, rank: int) -> None:
    assert split_name(rank_name(name, rank)) == (name, rank)


def test_equal_replicas_give_equal_documents_whatever_else_a_rank_has() -> None:
    one = labelled(state(own=5), 0, replicated=REPLICATED)
    other = labelled(state(own=6, ahead=100), 1, replicated=REPLICATED)
    for name in REPLICATED:
        assert encode(one.components[name], [], "json") == encode(other.components[name], [], "json")
    assert set(one.promises) == {"replay_buffer@rank0", *REPLICATED}


def test_a_view_is_what_the_rank_has_saved() -> None:
    saved = together(state(own=5), state(own=6), state(own=7))
    assert ranks_in(saved.components) == [0, 1, 2]
    for rank, own in enumerate((5, 6, 7)):
        assert compare(view(saved, rank), state(own=own)) == []
    assert set(view(saved, 3).components) == REPLICATED


def test_a_rank_without_a_part_of_its_own_sees_what_it_is_lent() -> None:
    saved = together(state(own=5), state(own=6))
    assert compare(view(saved, 2, lent={"replay_buffer@rank0"}), state(own=5)) == []


def test_numbers_in_a_view_are_there_once() -> None:
    saved = together(state(own=5), state(own=6))
    for rank in range(2):
        seen = view(saved, rank)
        found = index(seen).by_number
        assert len(found) == 3
        for name, part in seen.components.items():
            root = part.roots[name]
            assert isinstance(root, Dict)
            assert root.v is not None
            again = root.v["again"]
            assert isinstance(again, Ref)
            assert found[again.to] is root.v["a"]


def test_states_of_several_ranks_are_compared_rank_by_rank() -> None:
    saved = together(state(own=5), state(own=6))
    assert compare(saved, together(state(own=5, ahead=9), state(own=6, ahead=4))) == []
    [difference] = compare(saved, together(state(own=5), state(own=9)))
    assert (difference.component, difference.place) == ("replay_buffer@rank1", "replay_buffer/a")
    assert numbered_together(saved.components) == [
        ["policy_weights"], ["optimizer_states"], ["replay_buffer@rank0"], ["replay_buffer@rank1"]
    ]  # fmt: skip
