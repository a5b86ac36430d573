"""The prioritized buffer against a model that keeps lists and adds up, and in a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.capture.shelf import Shelf, contents
from unbroken import PrioritizedReplayBuffer
from unbroken.capture import ledger
from unbroken.capture.policies import default_policy
from unbroken.capture.rings import read_ring
from unbroken.capture.source import GraftSource
from unbroken.errors import ConfigError
from unbroken.state import walk

FIELDS: dict[str, tuple[tuple[int, ...], Any]] = {"obs": ((3,), np.float32), "action": ((), np.int64)}


class Model:
    """The same with lists: what it holds, oldest overwritten first, and its priorities."""

    def __init__(self, capacity: int, alpha: float, epsilon: float) -> None:
        self.capacity, self.alpha, self.epsilon = capacity, alpha, epsilon
        self.values: list[int] = []
        self.priorities: list[float] = []
        self.added = 0
        self.largest = 1.0

    def add(self, value: int) -> None:
        place = self.added % self.capacity
        self.values[place : place + 1] = [value]
        self.priorities[place : place + 1] = [self.largest]
        self.added += 1

    def update(self, index: list[int], priorities: list[float]) -> None:
        for i, priority in zip(index, priorities, strict=True):
            self.priorities[i] = priority + self.epsilon
            self.largest = max(self.largest, self.priorities[i])

    @property
    def chances(self) -> list[float]:
        powers = [priority**self.alpha for priority in self.priorities]
        return [power / math.fsum(powers) for power in powers]

    def weights(self, index: list[int], beta: float) -> list[float]:
        found = [(len(self.values) * chance) ** -beta for chance in self.chances]
        return [found[i] / max(found) for i in index]


def buffer_of(capacity: int, **options: float) -> PrioritizedReplayBuffer:
    return PrioritizedReplayBuffer(capacity, FIELDS, **options)


def add(buffer: PrioritizedReplayBuffer, *values: int) -> None:
    for value in values:
        buffer.add(obs=[value, value + 1, value + 2], action=value)


def leaves(buffer: PrioritizedReplayBuffer) -> np.ndarray[Any, np.dtype[np.float64]]:
    return buffer._sums[buffer._width : buffer._width + len(buffer)]


@settings(max_examples=300, deadline=None)
@given(
    capacity=st.integers(1, 21),
    alpha=st.sampled_from([0.0, 0.5, 0.6, 1.0]),
    acts=st.lists(
        st.one_of(
            st.integers(0, 60),
            st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1e6)), min_size=1, max_size=6),
        ),
        max_size=12,
    ),
)
def test_the_trees_are_what_a_naive_model_adds_up(capacity: int, alpha: float, acts: list[Any]) -> None:
    buffer, model = buffer_of(capacity, alpha=alpha), Model(capacity, alpha, 1e-6)
    for act in [1, *acts]:
        if isinstance(act, list):
            index = [i % len(buffer) for i, _ in act]
            priorities = [priority for _, priority in act]
            buffer.update(index, priorities)
            model.update(index, priorities)
        elif act % 2:
            add(buffer, act)
            model.add(act)
        else:
            values = np.arange(act)
            buffer.extend(obs=np.stack([values, values + 1, values + 2], 1), action=values)
            for value in values:
                model.add(int(value))
        assert len(buffer) == len(model.values)
        assert buffer.rows["action"][: len(buffer)].tolist() == model.values
        assert np.allclose(leaves(buffer), np.array(model.priorities) ** alpha, rtol=1e-12)
        sums, least = buffer._sums, buffer._least
        for node in range(1, buffer._width):  # the very bits: the trees do not depend on the order
            assert sums[node] == sums[2 * node] + sums[2 * node + 1]
            assert least[node] == min(least[2 * node], least[2 * node + 1])
        assert least[1] == leaves(buffer).min()
    drawn = buffer.sample(16, np.random.default_rng(capacity), beta=0.4)
    assert drawn.indices.max() < len(buffer)
    assert np.allclose(drawn.weights, model.weights(drawn.indices.tolist(), 0.4), rtol=1e-9)
    assert drawn.rows["obs"][:, 0].tolist() == drawn.rows["action"].tolist()


def test_transitions_are_drawn_by_their_priority() -> None:
    buffer, model = buffer_of(6, alpha=0.7), Model(6, 0.7, 1e-6)
    add(buffer, *range(6))
    for value in range(6):
        model.add(value)
    for owner in (buffer, model):
        owner.update([0, 1, 2, 3, 4, 5], [0.0, 1.0, 2.0, 4.0, 8.0, 16.0])
    rng = np.random.default_rng(3)
    index = np.concatenate([buffer.sample(32, rng, beta=1.0).indices for _ in range(2000)])
    share = np.bincount(index, minlength=6) / len(index)
    assert np.allclose(share, model.chances, atol=2e-3)
    # Of equal parts of the sum each gives one: counts differ by one at most.
    for _ in range(50):
        counts = np.bincount(buffer.sample(10, rng, beta=1.0).indices, minlength=6)
        assert np.abs(counts - 10 * np.array(model.chances)).max() <= 2


@pytest.mark.parametrize("mark", [0.0, np.nextafter(3.0, 0), 3.0, np.inf])
def test_what_is_empty_is_never_drawn(mark: float) -> None:
    buffer = buffer_of(5)
    add(buffer, 1, 2, 3)
    assert buffer._find(np.array([mark]))[0] <= 2
    buffer.update([2], [0.0])
    assert buffer._find(np.array([mark]))[0] <= 2


def test_a_transition_twice_in_one_update_gets_the_last_priority() -> None:
    buffer = buffer_of(4, alpha=1.0, epsilon=0.5)
    add(buffer, 1, 2)
    buffer.update([1, 1, 0, 1], [9.0, 7.0, 1.0, 2.0])
    assert leaves(buffer).tolist() == [1.5, 2.5]
    assert buffer.largest == 9.5


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda b: PrioritizedReplayBuffer(0, FIELDS), "holds nothing"),
        (lambda b: PrioritizedReplayBuffer(3, {}), "holds nothing"),
        (lambda b: buffer_of(3, alpha=1.5), "alpha=1.5"),
        (lambda b: buffer_of(3, epsilon=0.0), "epsilon=0.0"),
        (lambda b: b.add(obs=[1, 2, 3]), "fields obs, action, not obs"),
        (lambda b: b.extend(obs=[[1, 2, 3]], action=[1, 2]), r"\[1, 2\] rows"),
        (lambda b: b.sample(3, np.random.default_rng(), beta=1.0), "empty"),
        (lambda b: b.update([0], [1.0]), "no transitions 0 to 0"),
        (lambda b: b.update([0], [math.nan]), "finite"),
        (lambda b: b.update([0], [-1.0]), "finite"),
        (lambda b: b.update([0, 1], [1.0]), "one for each"),
    ],
)
def test_what_is_refused(act: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        act(buffer_of(4))


def test_rows_that_do_not_fit_are_refused_before_one_is_written() -> None:
    """Else a checkpoint would lack them: they are not counted."""
    buffer = PrioritizedReplayBuffer(4, {"action": ((), np.int64), "obs": ((3,), np.float32)})
    with pytest.raises(ConfigError, match=r"rows of obs have the shape \(2,\), not \(3,\)"):
        buffer.extend(action=[1, 2], obs=[[1, 2], [3, 4]])
    assert not buffer.rows["action"].any()
    assert len(buffer) == 0


def test_an_update_of_nothing_is_nothing() -> None:
    buffer_of(4).update([], [])


def test_it_is_a_ring() -> None:
    buffer = buffer_of(10)
    add(buffer, *range(13))
    state = read_ring(buffer)
    assert state is not None
    assert (state.position, state.adds, state.full, dict(state.written)) == (3, 13, True, {"rows": 10})


def test_a_save_costs_the_new_rows_and_the_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "CHUNK_BYTES", 4096)
    buffer = PrioritizedReplayBuffer(512, {"obs": ((256,), np.float32), "action": ((), np.int64)})
    source, shelf = GraftSource({"buffer": buffer}, default_policy()), Shelf()
    rng = np.random.default_rng(1)
    saved = shelf.save(source)
    for count in (300, 300, 7, 1):
        buffer.extend(obs=rng.random((count, 256)), action=rng.integers(9, size=count))
        buffer.update(buffer.sample(16, rng, beta=1.0).indices, rng.random(16))
        saved = shelf.save(source)
        assert contents(saved) == contents(walk.capture(source.roots, default_policy()))
    trees, row = 2 * 2 * 512 * 8, 1024 + 8
    assert shelf.captured["training_state"] <= trees + 2 * row + 4 * 4096

    twin = PrioritizedReplayBuffer(512, {"obs": ((256,), np.float32), "action": ((), np.int64)})
    other = GraftSource({"buffer": twin}, default_policy())
    shelf.restore(other, saved)
    for _ in range(3):
        drawn = [b.sample(32, np.random.default_rng(5), beta=0.5) for b in (buffer, twin)]
        assert drawn[0].indices.tolist() == drawn[1].indices.tolist()
        assert drawn[0].weights.tobytes() == drawn[1].weights.tobytes()
        for b in (buffer, twin):
            b.update(drawn[0].indices, np.linspace(0, 3, 32))
            b.add(obs=np.ones(256), action=4)
    assert twin._sums.tobytes() == buffer._sums.tobytes()
