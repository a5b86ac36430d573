"""A ring buffer costs the rows that were written, and says itself which those are."""

# ruff: noqa: NPY002 - the buffers draw from numpy's legacy generator
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.capture.policies import default_policy
from unbroken.capture.rings import Ring, read_ring, ring_of, written_rows
from unbroken.errors import ConfigError, NotCapturable
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture

Travel = Callable[[Snapshot], Snapshot]

gymnasium = pytest.importorskip("gymnasium")
buffers = pytest.importorskip("stable_baselines3.common.buffers")
her = pytest.importorskip("stable_baselines3.her.her_replay_buffer")
spaces = gymnasium.spaces

BOX = spaces.Box(-1.0, 1.0, (500,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (2,), np.float32)
GOALS = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})


class GoalEnv:
    """What HER asks of its environment."""

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [np.zeros(len(args[0]))]


def add(buffer: Any, count: int, seed: int = 0, length: int = 4) -> None:
    rng = np.random.default_rng(seed)
    for i in range(count):
        n = buffer.n_envs

        def observation(n: int = n) -> Any:
            sample = rng.normal(size=(n, 500)).astype(np.float32)
            if isinstance(buffer.observation_space, spaces.Dict):
                return {key: sample + j for j, key in enumerate(buffer.observation_space)}
            return sample

        done = np.full(n, (i + 1) % length == 0)
        infos = [{"step": i, "TimeLimit.truncated": False} for _ in range(n)]
        buffer.add(observation(), observation(), rng.normal(size=(n, 2)), rng.normal(size=n), done, infos)


def build(kind: str, capacity: int = 20) -> Any:
    common: dict[str, Any] = {"device": "cpu", "n_envs": 2}
    size = 2 * capacity
    if kind == "plain":
        return buffers.ReplayBuffer(size, BOX, ACTION, **common)
    if kind == "lean":
        return buffers.ReplayBuffer(
            size, BOX, ACTION, optimize_memory_usage=True, handle_timeout_termination=False, **common
        )
    if kind == "n steps":
        return buffers.NStepReplayBuffer(size, BOX, ACTION, **common)
    if kind == "dict":
        return buffers.DictReplayBuffer(size, GOALS, ACTION, **common)
    return her.HerReplayBuffer(size, GOALS, ACTION, env=GoalEnv(), copy_info_dict=True, **common)


KINDS = ["plain", "lean", "n steps", "dict", "her"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def total_bytes(saved: Snapshot) -> int:
    return sum(component.nbytes for component in saved.components.values())


def drawn(buffer: Any) -> list[Any]:
    np.random.seed(5)
    sample = buffer.sample(16)
    flat: list[Any] = []
    for part in sample:
        if part is not None:
            flat.extend(part.values() if isinstance(part, dict) else [part])
    return [part.numpy().tobytes() for part in flat]


@every_kind
@pytest.mark.parametrize("count", [0, 1, 7, 19, 20, 33])
def test_the_buffers_of_sb3_come_back(kind: str, count: int, travel: Travel) -> None:
    original, twin = build(kind), build(kind)
    add(original, count)
    saved = travel(capture({"it": original}, default_policy()))
    graft = plan(saved, {"it": twin}, default_policy())
    assert graft.differences == []
    graft.apply()
    assert compare(saved, capture({"it": twin}, default_policy())) == []
    bare = replace(default_policy(), rings=())  # every row, written or not
    assert compare(capture({"it": original}, bare), capture({"it": twin}, bare)) == []
    if count >= 4:
        assert drawn(original) == drawn(twin)
    add(original, 30, seed=1)
    add(twin, 30, seed=1)
    assert drawn(original) == drawn(twin)


@every_kind
def test_an_unfilled_buffer_costs_its_written_rows(kind: str) -> None:
    small, large = build(kind, 20), build(kind, 2000)
    for buffer in (small, large):
        add(buffer, 5)
    saved = [capture({"it": buffer}, default_policy()) for buffer in (small, large)]
    # HER keeps the start and length of each episode in arrays of the full capacity.
    bookkeeping = 2 * 8 * 2 * 2000 if kind == "her" else 0
    assert total_bytes(saved[1]) <= total_bytes(saved[0]) + bookkeeping


def test_the_row_after_the_position_is_written_ahead() -> None:
    buffer = build("lean", 5)
    for position, ahead in ((0, 1), (1, 2), (4, 5), (5, 5), (6, 5)):
        add(buffer, position - (buffer.pos + 5 * buffer.full))
        rows = written_rows(buffer)
        assert rows is not None and rows["observations"] == ahead
        assert rows["actions"] == min(position, 5)


def test_episodes_that_outlive_a_reset_are_saved() -> None:
    """HER draws by the lengths of episodes, which reset() leaves where they are."""
    buffer = build("her")
    add(buffer, 12)
    buffer.reset()
    rows = written_rows(buffer)
    assert rows is not None and rows["actions"] == 20


def test_a_subclass_that_adds_in_its_own_way_is_saved_whole_until_it_declares_itself() -> None:
    class FromTheEnd(buffers.ReplayBuffer):  # type: ignore[misc, name-defined]
        def add(self, *args: Any) -> None:
            self.actions[-1 - self.pos] = 1.0
            self.pos += 1

    class Prioritized(buffers.ReplayBuffer):  # type: ignore[misc, name-defined]
        __unbroken_ring__ = Ring(("actions", "rewards"), position="pos", full="full")

        def add(self, *args: Any) -> None:
            super().add(*args)

    class Sampling(buffers.ReplayBuffer):  # type: ignore[misc, name-defined]
        def sample(self, *args: Any, **kwargs: Any) -> Any:
            return super().sample(*args, **kwargs)

    arguments: Any = (20, BOX, ACTION, "cpu")
    assert ring_of(FromTheEnd(*arguments)) is None
    declared, sampling = Prioritized(*arguments), Sampling(*arguments)
    add(declared, 3)
    add(sampling, 3)
    assert written_rows(declared) == {"actions": 3, "rewards": 3}
    assert (written_rows(sampling) or {})["observations"] == 3


def test_a_rollout_buffer_is_no_ring() -> None:
    assert written_rows(buffers.RolloutBuffer(20, BOX, ACTION, "cpu")) is None
    assert written_rows(object()) is None


class Own:
    """A buffer as single-file implementations write it."""

    __unbroken_ring__: Ring | None = Ring(("obs", "act"), position="ptr", size="size")

    def __init__(self, capacity: int = 8) -> None:
        self.obs = np.zeros((capacity, 100))
        self.act = np.zeros(capacity, np.int64)
        self.ptr = self.size = 0

    def store(self, value: float) -> None:
        self.obs[self.ptr], self.act[self.ptr] = value, int(value)
        self.ptr = (self.ptr + 1) % len(self.obs)
        self.size = min(self.size + 1, len(self.obs))


class Counting(Own):
    __unbroken_ring__ = Ring(("obs", "act"), adds="total")
    total = 0

    def store(self, value: float) -> None:
        super().store(value)
        self.total += 1


class Flagged(Own):
    __unbroken_ring__ = Ring(("obs", "act"), position="ptr", full="full")
    full = False

    def store(self, value: float) -> None:
        super().store(value)
        self.full |= self.size == len(self.obs)


class NoRing(Own):
    __unbroken_ring__ = None


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from([Own, Counting, Flagged]), count=st.integers(0, 30), capacity=st.integers(1, 12))
def test_each_way_of_counting_gives_the_written_rows(kind: type[Own], count: int, capacity: int) -> None:
    original, twin = kind(capacity), kind(capacity)
    for i in range(count):
        original.store(i + 1.0)
    state = read_ring(original)
    assert state is not None
    written = min(count, capacity)
    assert dict(state.written) == {"obs": written, "act": written}
    assert (state.capacity, state.full) == (capacity, count >= capacity)
    assert state.adds == (count if kind is Counting else None)
    assert state.position == (-1 if kind is Counting else count % capacity)
    saved = capture({"it": original}, default_policy())
    plan(saved, {"it": twin}, default_policy()).apply()
    assert np.array_equal(original.obs, twin.obs) and np.array_equal(original.act, twin.act)


class Queue(Own):
    """Gives its rows back in the order in which they came."""

    def pop(self) -> float:
        self.size -= 1
        return float(self.obs[self.ptr - self.size - 1, 0])


class ByCalls(Own):
    """Its count is of calls, each of which adds three rows."""

    __unbroken_ring__ = Ring(("obs", "act"), position="ptr", adds="calls")
    calls = 0

    def store(self, value: float) -> None:
        for _ in range(3):
            super().store(value)
        self.calls += 1


@pytest.mark.parametrize("kept", [0, 1, 2, 7])
@pytest.mark.parametrize("count", [7, 20, 64, 101])
def test_rows_in_use_that_do_not_begin_at_the_first(count: int, kept: int) -> None:
    original, twin = Queue(40), Queue(40)
    for i in range(count):
        original.store(i + 1.0)
        if original.size > kept:
            original.pop()
    plan(capture({"it": original}, default_policy()), {"it": twin}, default_policy()).apply()
    assert [twin.pop() for _ in range(kept)] == [count - kept + 1.0 + i for i in range(kept)]


@pytest.mark.parametrize("count", [1, 5, 13, 14, 40])
def test_a_count_that_is_not_of_rows_loses_none(count: int) -> None:
    original, twin = ByCalls(40), ByCalls(40)
    for i in range(count):
        original.store(i + 1.0)
    plan(capture({"it": original}, default_policy()), {"it": twin}, default_policy()).apply()
    assert np.array_equal(original.obs, twin.obs) and np.array_equal(original.act, twin.act)


def test_what_is_written_ahead_of_the_first_row_is_saved() -> None:
    class Ahead(Flagged):
        __unbroken_ring__ = Ring(("obs", "act"), position="ptr", full="full", ahead={"obs": 1})

    original, twin = Ahead(), Ahead()
    original.obs[0] = 5.0  # where an episode begins
    assert written_rows(original) == {"obs": 1, "act": 0}
    plan(capture({"it": original}, default_policy()), {"it": twin}, default_policy()).apply()
    assert (twin.obs[0] == 5.0).all()


def test_a_ring_without_room_for_a_row() -> None:
    with pytest.raises(NotCapturable, match="room for one row"):
        read_ring(Own(0))


def tensors(buffer: Own) -> Own:
    torch = pytest.importorskip("torch")
    buffer.obs = torch.from_numpy(buffer.obs)
    return buffer


def objects(buffer: Own) -> Own:
    buffer.obs = np.full((len(buffer.act), 1), None)
    return buffer


FORMS: dict[str, Callable[[Own], Own]] = {
    "array": lambda buffer: buffer, "tensor": tensors, "objects": objects
}  # fmt: skip


def another(obs: Any) -> Own:
    buffer = Own(len(obs))
    buffer.obs = obs
    return buffer


OTHERS: dict[str, Callable[[Any], Any]] = {
    "another ring": another,
    "a plain place": lambda obs: obs,
    "a view of a part": lambda obs: obs[5:],
    "a small view": lambda obs: obs[30:31],
    "a view of all": lambda obs: obs[:],
}


@pytest.mark.parametrize("first", ["it", "other"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_that_somebody_else_wrote_are_saved(form: str, other: str, first: str, travel: Travel) -> None:
    """The ring has written two rows of the array, and others have written row 30."""

    def program() -> dict[str, Any]:
        ring = FORMS[form](Own(40))
        roots: dict[str, Any] = {"it": ring, "other": {"it": OTHERS[other](ring.obs)}}
        return {key: roots[key] for key in sorted(roots, key=lambda key: key != first)}

    original, twin = program(), program()
    for value in (1.0, 2.0):
        original["it"].store(value)
    original["it"].obs[30] = 30.0
    saved = travel(capture(original, default_policy()))
    plan(saved, twin, default_policy()).apply()
    assert [float(twin["it"].obs[row, 0]) for row in (0, 1, 30)] == [1.0, 2.0, 30.0]
    kept = original["it"].obs
    del original["other"]
    without = capture(original, default_policy())
    assert kept[30, 0] == 30.0 and total_bytes(without) <= 2 * 808, "alone it costs its two rows again"


def test_the_owner_of_the_memory_that_a_ring_has_a_view_of() -> None:
    def program() -> dict[str, Any]:
        raw = np.zeros(4000)
        return {"it": another(raw.reshape(40, 100)), "raw": raw}

    original, twin = program(), program()
    original["it"].store(1.0)
    original["raw"][3000:3100] = 30.0
    raw = twin["raw"]
    plan(capture(original, default_policy()), twin, default_policy()).apply()
    assert (twin["it"].obs[0] == 1.0).all() and (twin["it"].obs[30] == 30.0).all()
    assert twin["raw"] is raw and np.shares_memory(raw, twin["it"].obs)


def test_one_lap_is_told_from_none_by_the_count_alone() -> None:
    buffer = Counting(4)
    states = []
    for i in range(8):
        buffer.store(float(i))
        states.append(read_ring(buffer))
    before, after = states[3], states[7]
    assert before is not None and after is not None
    assert (before.position, before.full) == (after.position, after.full) and before.adds != after.adds


def test_a_class_can_say_that_it_is_none() -> None:
    buffer = NoRing(1000)
    assert written_rows(buffer) is None
    assert total_bytes(capture({"it": buffer}, default_policy())) == 1000 * 800 + 8000


@pytest.mark.parametrize(
    "arguments",
    [
        {"arrays": ()},
        {"arrays": "obs", "size": "size"},
        {"arrays": ("obs",)},
        {"arrays": ("obs",), "position": "ptr"},
        {"arrays": ("obs",), "full": "full"},
    ],
)
def test_a_declaration_that_says_too_little(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Ring(**arguments)


@pytest.mark.parametrize(
    ("ring", "message"),
    [
        (Ring(("obs", "absent"), size="size"), "'absent'"),
        (Ring(("obs", "ptr"), size="size"), "'ptr'"),
        (Ring(("obs", "odd"), size="size"), "one length"),
        (Ring(("obs",), size="absent"), "'absent'"),
        (Ring(("obs",), size="obs"), "'obs'"),
        (Ring(("obs",), size="beyond"), "claims 99"),
        (Ring(("obs",), size="negative"), "claims -1"),
    ],
)
def test_a_buffer_that_is_not_what_it_declares(ring: Ring, message: str) -> None:
    class Wrong(Own):
        __unbroken_ring__ = ring
        beyond, negative = 99, -1

        def __init__(self) -> None:
            super().__init__()
            self.odd = np.zeros(3)

    with pytest.raises(NotCapturable, match=message):
        read_ring(Wrong())


def test_a_declaration_of_another_kind_is_an_error() -> None:
    class Wrong(Own):
        __unbroken_ring__ = "obs"  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="no Ring"):
        read_ring(Wrong())


def test_one_policy_for_one_set_of_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_policy() is default_policy()
    with_torch = default_policy()
    monkeypatch.delitem(sys.modules, "torch")
    assert default_policy() is not with_torch
    assert "torch:Tensor" not in default_policy().codecs
    assert "torch:Tensor" in with_torch.codecs


def test_an_array_that_changes_anywhere_is_saved_beyond_the_rows_in_use() -> None:
    class Prioritized(Flagged):
        __unbroken_ring__ = Ring(("obs", "act"), position="ptr", full="full", anywhere=("act",))

    original, twin = Prioritized(4000), Prioritized(4000)
    original.store(1.0)
    original.act[:] = 9.0  # what is added next starts with the highest priority
    saved = capture({"it": original}, default_policy())
    plan(saved, {"it": twin}, default_policy()).apply()
    assert np.array_equal(original.act, twin.act)


@pytest.mark.parametrize("ahead", [("obs",), {"other": 1}, {"obs": -1}, {"obs": 1.5}])
def test_rows_ahead_are_numbers_by_the_names_of_arrays(ahead: Any) -> None:
    with pytest.raises(ConfigError, match="ahead"):
        Ring(("obs",), position="ptr", full="full", ahead=ahead)
