"""The size of coming snapshots is known before the first step of the optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unbroken.capture.foresight import missing_moments
from unbroken.capture.rings import Ring
from unbroken.capture.source import GraftSource, policy_of_loaded

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}), ("NAdam", {}), ("RAdam", {}), ("Adamax", {}),
        ("Adadelta", {}), ("RMSprop", {}), ("RMSprop", {"centered": True, "momentum": 0.9}), ("SGD", {}),
        ("SGD", {"momentum": 0.9}), ("Adagrad", {}),
    ],
)  # fmt: skip
def test_it_foresees_what_the_first_step_makes(name: str, options: dict[str, Any]) -> None:
    net = torch.nn.Linear(64, 64)
    net.bias.requires_grad_(False)
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1, **options)

    def held() -> int:
        tensors = [value for state in optimizer.state.values() for value in state.values()]
        return sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor) and t.ndim)

    before, foreseen = held(), missing_moments(optimizer)
    net(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    assert foreseen == held() - before
    assert missing_moments(optimizer) == 0


def test_it_is_what_a_save_copies_and_rows_of_rings_are_not_counted() -> None:
    class Buffer:
        __unbroken_ring__ = Ring(("rows",), position="pos", full="full")

        def __init__(self) -> None:
            self.rows, self.pos, self.full = np.zeros((4096, 1024), np.uint8), 0, True

        def add(self) -> None:
            self.pos = (self.pos + 1) % 4096

    net = torch.nn.Linear(512, 512, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    source = GraftSource({"net": net, "optimizer": optimizer, "buffer": Buffer()}, policy_of_loaded())
    source.capture()
    assert source.expected_bytes() == 3 * net.weight.nbytes
