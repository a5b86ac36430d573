"""Generators that go on with a stream of their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unbroken.capture.branching import branch_all


def _torch(seed: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.Generator().manual_seed(seed)


def _draw_torch(generator: Any) -> Any:
    import torch

    return torch.rand(3, generator=generator).tolist()


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "python": (random.Random, lambda g: g.random()),
    "legacy": (np.random.RandomState, lambda g: g.randn(3).tolist()),
    "PCG64": (np.random.default_rng, lambda g: g.random(3).tolist()),
    "MT19937": (lambda s: np.random.Generator(np.random.MT19937(s)), lambda g: g.random(3).tolist()),
    "Philox": (lambda s: np.random.Generator(np.random.Philox(s)), lambda g: g.random(3).tolist()),
    "SFC64": (lambda s: np.random.Generator(np.random.SFC64(s)), lambda g: g.random(3).tolist()),
    "torch": (_torch, _draw_torch),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_follows_from_state_and_salt_and_repeats_nothing(kind: str) -> None:
    make, draw = KINDS[kind]
    parent, one, again, other, later = (make(1) for _ in range(5))
    draw(later)
    for generator, salt in ((one, b"a"), (again, b"a"), (other, b"b"), (later, b"a")):
        assert branch_all([generator], salt) == 1
    drawn = [draw(generator) for generator in (parent, one, other, later)]
    assert draw(again) == drawn[1]
    assert all(drawn.count(value) == 1 for value in drawn)


def test_a_generator_and_its_bits_are_branched_once() -> None:
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    assert branch_all([one, one.bit_generator], b"a") == 1
    branch_all([other], b"a")
    assert one.random() == other.random()


def test_what_draws_from_the_system_is_left_alone() -> None:
    assert branch_all([random.SystemRandom(), object()], b"a") == 0
