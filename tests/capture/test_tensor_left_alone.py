"""What a save and a restore of tensors leave to the program: the size of its memory, and its methods."""

from __future__ import annotations

import torch

from tests.capture.test_tensor import POLICY, Holder
from unbroken.state.graft import plan
from unbroken.state.nodes import Coded, Dict
from unbroken.state.walk import capture


def test_memory_may_change_its_size_after_a_save_and_after_a_restore() -> None:
    holder = Holder(plain=torch.arange(4.0), large=torch.arange(3000.0), thin=torch.zeros(9000)[::9])
    saved = capture({"it": holder}, POLICY)
    other = Holder(plain=torch.zeros(4), large=torch.zeros(5), thin=torch.ones(9000)[::9])
    saved.adoptable = True
    plan(saved, {"it": other}, POLICY).apply()
    for tensor in (holder.plain, holder.large, holder.thin, other.plain, other.large, other.thin):
        assert tensor.untyped_storage().resizable()
    assert torch.equal(other.large, torch.arange(3000.0))


def test_memory_may_change_its_size_after_it_was_compared_as_a_session() -> None:
    from unbroken.adapters.nemo_gym.sessions.digests import digest_of

    tensor = torch.arange(4.0)
    assert digest_of(tensor) == digest_of(torch.arange(4.0)) != digest_of(torch.zeros(4))
    assert tensor.untyped_storage().resizable()


def test_nothing_that_can_be_called_comes_to_stand_in_front_of_a_method_of_a_tensor() -> None:
    class Score:
        def __call__(self) -> str:
            raise AssertionError("a document has something called")

    original, twin, own = torch.zeros(3), torch.ones(3), Score()
    vars(original)["other"] = own
    document = capture({"own": own, "it": original}, POLICY)
    (root,) = [
        node
        for component in document.components.values()
        for node in component.roots.values()
        if isinstance(node, Coded)
    ]
    assert isinstance(root.v, Dict) and root.v.v is not None
    attributes = root.v.v["attributes"]
    assert isinstance(attributes, Dict) and attributes.v is not None
    attributes.v["detach"] = attributes.v.pop("other")
    graft = plan(document, {"own": own, "it": twin}, POLICY)
    assert "in front of a method" in str(graft.errors)
    assert vars(twin) == {}
