"""Weights that are not finite are found, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from unbroken.capture.source import policy_of_loaded
from unbroken.capture.weights import not_finite
from unbroken.state.policy import Policy
from unbroken.state.walk import capture


def sick(**roots: object) -> dict[str, str]:
    return not_finite(capture(roots, policy_of_loaded()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("size", [3, 3000])
def test_weights_that_are_not_finite_are_named(dtype: torch.dtype, value: float, size: int) -> None:
    network = torch.nn.Linear(size, 1, dtype=dtype)
    assert sick(network=network) == {}
    with torch.no_grad():
        network.weight[0, size - 1] = value
    assert sick(network=network) == {"network/_parameters/weight": "policy_weights"}


def test_integers_with_any_bits_are_healthy() -> None:
    network = torch.nn.Linear(2, 1)
    network.register_buffer("counts", torch.full((2000,), 0x7F80, dtype=torch.int16))
    assert sick(network=network) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_tensors_in_one_memory_only_the_one_that_holds_it_is_named(dtype: torch.dtype) -> None:
    flat = torch.zeros(5000, dtype=dtype)
    network = torch.nn.Module()
    network.first = torch.nn.Parameter(flat[:2000])
    network.second = torch.nn.Parameter(flat[2000:].view(3, 1000).t())
    flat[2000 + 2500] = float("nan")
    assert sick(network=network) == {"network/_parameters/second": "policy_weights"}


def test_a_buffer_of_the_state_dict_is_a_weight_and_what_stands_beside_it_is_none() -> None:
    network: Any = torch.nn.Linear(2, 1)
    network.register_buffer("mean", torch.full((2,), float("nan")))
    network.register_buffer("mask", torch.full((2,), float("-inf")), persistent=False)
    network.made_when_needed = torch.full((2,), float("-inf"))
    network.table = np.full(3, np.inf)
    assert sick(network=network) == {"network/_buffers/mean": "policy_weights"}


class Net:
    def __init__(self) -> None:
        self.weights = np.zeros((2, 2))
        self.steps = np.array([1, 2])


def test_of_a_network_without_a_state_dict_every_array_is_looked_at() -> None:
    net = Net()
    policy = policy_of_loaded(Policy(components={f"{Net.__module__}:Net": "policy_weights"}))
    assert not_finite(capture({"net": net}, policy)) == {}
    net.weights[1, 0] = np.nan
    assert not_finite(capture({"net": net}, policy)) == {"net/weights": "policy_weights"}
