"""What was loaded becomes the live state's own memory where the program has none yet, once and whole."""

from __future__ import annotations

import torch

from tests.capture.test_tensor import POLICY, Holder
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture


def lying_in(tensor: torch.Tensor, saved: Snapshot) -> bool:
    """Whether a tensor lies in the memory of a snapshot."""
    starts = [
        blob.ctypes.data
        for part in saved.components.values()
        for blob in map(part.content, range(len(part.blobs)))
    ]
    return tensor.data_ptr() in starts


def test_memory_of_an_adoptable_snapshot_is_taken_over_once() -> None:
    moments, here = torch.arange(1000.0), torch.arange(1000.0, 2000.0)
    saved = capture({"it": Holder(state={"moments": moments}, here=here)}, POLICY)
    saved.adoptable = True
    twin = Holder(state={}, here=torch.zeros(1000))
    own = twin.here
    graft = plan(saved, {"it": twin}, POLICY)
    graft.apply()
    assert lying_in(twin.state["moments"], saved)
    assert twin.here is own and not lying_in(own, saved)
    assert torch.equal(twin.state["moments"], moments) and torch.equal(twin.here, here)
    assert [place.startswith("it/state/moments") for place in graft.adopted.values()] == [True]


def test_of_two_that_lay_in_one_memory_both_lie_in_what_was_taken_over() -> None:
    whole = torch.arange(1000.0)
    saved = capture({"it": Holder(state={"a": whole[:600], "b": whole[400:]})}, POLICY)
    saved.adoptable = True
    twin = Holder(state={})
    plan(saved, {"it": twin}, POLICY).apply()
    twin.state["a"][500] = -1
    assert twin.state["b"][100] == -1
    assert torch.equal(twin.state["b"][200:], whole[600:])


def test_a_snapshot_shares_nothing_with_the_live_state_unless_it_says_so() -> None:
    saved = capture({"it": Holder(state={"moments": torch.arange(1000.0)})}, POLICY)
    for _ in range(2):
        twin = Holder(state={})
        graft = plan(saved, {"it": twin}, POLICY)
        graft.apply()
        assert not graft.adopted
        twin.state["moments"].zero_()
    assert compare(saved, capture({"it": Holder(state={"moments": torch.arange(1000.0)})}, POLICY)) == []
