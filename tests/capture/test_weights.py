"""Weights that are not finite are found, and nothing else is."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from unbroken.capture.source import policy_of_loaded
from unbroken.capture.weights import BLOCK, not_finite
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


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 3 * BLOCK - 1, 3 * BLOCK])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_one_value_among_many_is_found_wherever_it_stands(dtype: torch.dtype, at: int) -> None:
    flat = torch.zeros(3 * BLOCK + 1, dtype=dtype)
    assert sick(network=holding(flat)) == {}
    flat[at] = float("-inf")
    assert sick(network=holding(flat)) == {"network/_parameters/weight": "policy_weights"}


def test_infinities_that_cancel_are_found() -> None:
    flat = torch.zeros(BLOCK)
    flat[7], flat[8] = float("inf"), float("-inf")
    assert sick(network=holding(flat))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_finite_values_whose_sum_is_not_are_healthy(dtype: torch.dtype) -> None:
    flat = torch.full((3 * BLOCK,), torch.finfo(dtype).max, dtype=dtype)
    assert sick(network=holding(flat)) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_looking_takes_no_memory_of_the_size_of_the_weights(dtype: torch.dtype) -> None:
    state = capture({"network": holding(torch.zeros(64 * BLOCK, dtype=dtype))}, policy_of_loaded())
    tracemalloc.start()
    try:
        assert not_finite(state) == {}
        assert tracemalloc.get_traced_memory()[1] < 8 * BLOCK
    finally:
        tracemalloc.stop()


def holding(weight: torch.Tensor) -> torch.nn.Module:
    network = torch.nn.Module()
    network.weight = torch.nn.Parameter(weight)
    return network


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


class Agent(torch.nn.Module):
    """Has a component of its own, and a network in another one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(2))
        self.network = torch.nn.Linear(2, 2)
        self.table = np.full(3, np.inf)


def test_a_weight_that_lies_in_another_component_is_found() -> None:
    agent = Agent()
    policy = policy_of_loaded(Policy(components={f"{Agent.__module__}:Agent": "agent_state"}))
    assert not_finite(capture({"agent": agent}, policy)) == {}
    with torch.no_grad():
        agent.scale[1] = agent.network.bias[0] = float("nan")
    assert not_finite(capture({"agent": agent}, policy)) == {
        "agent/_parameters/scale": "agent_state",
        "agent/_modules/network/_parameters/bias": "policy_weights",
    }
