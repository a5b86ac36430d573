"""What a source finds out about its own snapshots."""

from __future__ import annotations

import pytest
import torch

from unbroken.capture.source import GraftSource, policy_of_loaded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("size", [3, 3000])
def test_weights_that_are_not_finite_are_named(dtype: torch.dtype, value: float, size: int) -> None:
    network = torch.nn.Linear(size, 1, dtype=dtype)
    source = GraftSource({"network": network}, policy_of_loaded())
    assert source.sick_components(source.capture()) == []
    with torch.no_grad():
        network.weight[0, size - 1] = value
    assert source.sick_components(source.capture()) == ["policy_weights"]


def test_integers_with_any_bits_are_healthy() -> None:
    network = torch.nn.Linear(2, 1)
    network.register_buffer("counts", torch.full((2000,), 0x7F80, dtype=torch.int16))
    source = GraftSource({"network": network}, policy_of_loaded())
    assert source.sick_components(source.capture()) == []
