"""Digests of what a learner or a runner holds, taken in its own process."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter
from ray.rllib.utils.numpy import convert_to_numpy


def weights_of(module: Any) -> str:
    """Return a digest of a module's tensors, target networks among them."""
    state = convert_to_numpy(module.get_state(inference_only=False))
    return hashlib.sha256(repr(sorted(_leaves("", state))).encode()).hexdigest()


def _leaves(at: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [leaf for key, part in value.items() for leaf in _leaves(f"{at}/{key}", part)]
    if isinstance(value, (list, tuple)):
        return [leaf for i, part in enumerate(value) for leaf in _leaves(f"{at}/{i}", part)]
    return [(at, value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value))]


def weights_in(learner: Any) -> str:
    return weights_of(learner.module)


def optimizer_in(learner: Any) -> str:
    state = convert_to_numpy(learner._get_optimizer_state())
    return hashlib.sha256(repr(sorted(_leaves("", state))).encode()).hexdigest()


def filters_of(runner: Any) -> list[str]:
    """Return what the filters of a runner's observations have counted, each bit of it."""
    connectors = getattr(runner, "_env_to_module", None) or ()
    filters = [one for one in connectors if isinstance(one, MeanStdFilter)]
    return [repr(sorted(_leaves("", one.get_state()))) for one in filters]
