from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.capture import replay, tape
from unbroken.capture.environments import How, Verdict, attach, env_policy, put_in
from unbroken.capture.replay import Recorder
from unbroken.capture.tape import Reset, Tape
from unbroken.capture.values import from_data, to_data
from unbroken.errors import CorruptObject, RestoreFailed, StateMismatch
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.walk import capture
from unbroken.testing.env_oracle import _follow as follow
from unbroken.testing.env_oracle import three_way
from unbroken.types import Fidelity

pytest.importorskip("Box2D")
lander = partial(gym.make, "LunarLander-v3")
windy = partial(gym.make, "LunarLander-v3", continuous=True, enable_wind=True)
walker = partial(gym.make, "BipedalWalker-v3")


@pytest.mark.parametrize(
    ("make", "before"),
    [(lander, 30), (lander, 250), (windy, 40), (walker, 0), (walker, 220)],
    ids=["first episode", "later episode", "continuous", "walker after its reset", "walker, many episodes"],
)
def test_a_simulator_goes_on_in_a_fresh_process(make: Callable[[], Any], before: int) -> None:
    outcome = three_way(make, before=before)
    assert outcome.readback == []
    assert outcome.exact
    assert outcome.told_apart
    assert outcome.notes == [note for note in outcome.notes if note.kind == "external"]


def test_a_racing_car_goes_on_in_a_fresh_process() -> None:
    pytest.importorskip("pygame")
    outcome = three_way(partial(gym.make, "CarRacing-v3"), before=12, after=8)
    assert outcome.exact
    assert outcome.told_apart


def test_a_racing_car_takes_the_place_of_one_that_was_reset_alike() -> None:
    """As SB3 does at each start: with the seed of the run, before anything comes back."""
    pytest.importorskip("pygame")
    one, other = (recorded(partial(gym.make, "CarRacing-v3"))[0] for _ in range(2))
    actions = [one.action_space.sample() for _ in range(12)]
    follow(one, actions[:6])
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    assert follow(one, actions[6:]) == follow(other, actions[6:])
    one.close()
    other.close()


class Terrain(gym.Env[Any, Any]):
    """Draws a map in its first reset, of more numbers than are kept with a reset, and keeps it; `road` is an object."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.map: Any = None
        self.road: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        if self.map is None:
            self.map = [self.np_random.normal(size=2 * replay.LARGEST)]
        if self.road is not None:
            self.road.torn_down = True
        self.road = Road(int(self.np_random.integers(len(self.map[0]))))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.road.at += int(action) + 1
        return self.observe(), 0.0, False, False, {}

    def observe(self) -> Any:
        return self.map[0][self.road.at % len(self.map[0])].reshape(1)


class Road:
    """An object that no recording can hold."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.torn_down = False


def test_a_large_value_that_was_none_when_it_was_recorded_does_not_stay() -> None:
    one, other = Terrain(), Terrain()
    for env, seed in ((one, 3), (other, 4)):
        put_in(env, Verdict(How.REPLAY))
        env.reset(seed=seed)
    follow(one, [0, 1, 1])
    road = other.road
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    assert np.array_equal(one.map[0], other.map[0])
    assert follow(one, [1, 0, 1]) == follow(other, [1, 0, 1])
    assert road.torn_down  # an object does, for the reset to take it down


def recorded(make: Callable[[], Any] = lander, seed: int = 3) -> tuple[Any, Recorder]:
    env = make()
    env.action_space.seed(seed)
    env.reset(seed=seed)
    attach(env)
    recorder = vars(env.unwrapped)["step"].keeper
    assert isinstance(recorder, Recorder)
    return env, recorder


def test_a_replay_that_comes_out_differently_is_refused() -> None:
    one, _ = recorded()
    other, _ = recorded(seed=4)
    follow(one, [one.action_space.sample() for _ in range(20)])
    snapshot = capture({"env": one}, env_policy())
    step = vars(other.unwrapped)["step"]
    engine = step.original
    step.original = lambda action: engine(0 if action == 2 else action)  # the main engine is broken
    with pytest.raises(RestoreFailed, match="LunarLander") as refusal:
        plan(snapshot, {"env": other}, env_policy()).apply()
    assert "not recorded" in refusal.value.hint
    assert "register_env_capturer" in refusal.value.hint


def test_a_verdict_that_no_replay_is_exact_lets_a_different_one_pass() -> None:
    inexact = Verdict(How.REPLAY, Fidelity.APPROXIMATE, "it reads the clock")
    one, other = lander(), lander()
    for env, seed in ((one, 3), (other, 4)):
        env.reset(seed=seed)
        put_in(env, inexact)
    one.reset()
    follow(one, [0, 1, 2, 3] * 4)
    snapshot = capture({"env": one}, env_policy())
    assert ["it reads the clock" in n.detail for n in snapshot.notes if n.kind == "approximate"] == [True]
    step = vars(other.unwrapped)["step"]
    engine = step.original
    step.original = lambda action: engine(0 if action == 2 else action)
    plan(snapshot, {"env": other}, env_policy()).apply()
    assert compare(snapshot, capture({"env": other}, env_policy())) == []


@pytest.mark.parametrize("name", ["step", "reset", "render", "action_space", "__class__", "controller"])
def test_a_recording_cannot_stand_in_the_place_of_code(name: str) -> None:
    one, recorder = recorded()
    one.reset()
    recorder._tape.resets[0].settings[name] = 5
    other, _ = recorded(seed=4)
    other.unwrapped.controller = print
    graft = plan(capture({"env": one}, env_policy()), {"env": other}, env_policy())
    assert [error.detail for error in graft.errors] == [
        f"was saved with a value for {name}, which is the program's own."
    ]
    before = other.unwrapped.np_random.bit_generator.state
    with pytest.raises(StateMismatch):
        graft.apply()
    assert other.unwrapped.np_random.bit_generator.state == before


def test_values_beside_the_physics_that_outlive_an_episode_come_back() -> None:
    generator = np.random.default_rng(7)
    held = {
        "scores": [1.5, (2, 3)], "visits": {(0, 1): 5}, "best": np.float32(0.1), "heat": np.arange(4.0),
        "dice": generator, "names": {"a"}, "gust": np.int64(3),
    }  # fmt: skip
    one, _ = recorded()
    vars(one.unwrapped).update(held)
    one.reset()
    follow(one, [0, 2, 2])
    other, _ = recorded(seed=4)
    vars(other.unwrapped).update(heat=np.zeros(4), dice=np.random.default_rng(8))
    heat, dice = other.unwrapped.heat, other.unwrapped.dice
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    for name in ("scores", "visits", "best", "names", "gust"):
        found = getattr(other.unwrapped, name)
        assert (type(found), found) == (type(held[name]), held[name])
    assert other.unwrapped.heat is heat
    assert heat.tolist() == [0, 1, 2, 3]
    assert other.unwrapped.dice is dice
    assert dice.random() == generator.random()


def test_a_difference_in_a_tape_is_said_without_its_contents() -> None:
    one, _ = recorded()
    before = capture({"env": one}, env_policy())
    follow(one, [0, 2])
    found = compare(before, capture({"env": one}, env_policy()))
    assert "<replay>" in " ".join(difference.place for difference in found)
    assert not [d for d in found if "resets" in str(d) or "PCG64" in str(d)]


def test_an_attribute_that_a_curriculum_set_before_the_reset_comes_back() -> None:
    one, _ = recorded()
    one.unwrapped.gravity = -5.0
    one.reset()
    follow(one, [one.action_space.sample() for _ in range(10)])
    other, _ = recorded(seed=4)
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    assert other.unwrapped.gravity == -5.0
    assert follow(one, [0, 1, 2, 3]) == follow(other, [0, 1, 2, 3])


def test_attached_in_mid_episode_it_is_approximate_until_the_next_reset() -> None:
    env = lander()
    env.reset(seed=1)
    follow(env, [0, 2, 2])
    attach(env)
    notes = capture({"env": env}, env_policy()).notes
    assert [note.kind for note in notes if note.kind == "approximate"] == ["approximate"]
    env.reset()
    assert [n for n in capture({"env": env}, env_policy()).notes if n.kind == "approximate"] == []


def test_an_approximate_state_is_restored_without_an_error() -> None:
    env = lander()
    env.reset(seed=1)
    follow(env, [0, 2, 2])
    attach(env)
    other, _ = recorded(seed=9)
    snapshot = capture({"env": env}, env_policy())
    plan(snapshot, {"env": other}, env_policy()).apply()
    assert compare(snapshot, capture({"env": other}, env_policy())) == []
    one_draw = env.unwrapped.np_random.integers(1 << 40)
    assert other.unwrapped.np_random.integers(1 << 40) == one_draw


def test_a_history_longer_than_the_ceiling_becomes_approximate_and_says_so() -> None:
    env = walker()
    env.reset(seed=1)
    recorder = Recorder(env.unwrapped, whole=True, ceiling=10)
    recorder.install()
    follow(env, [env.action_space.sample() for _ in range(9)])
    assert recorder.unknown == ""
    follow(env, [env.action_space.sample() for _ in range(3)])
    assert "10 steps" in recorder.unknown
    env.reset()
    assert "earlier episodes" in recorder.unknown
    assert recorder.steps == 0


def test_memory_is_bounded_by_the_episode() -> None:
    env, recorder = recorded()
    follow(env, [env.action_space.sample() for _ in range(40)])
    assert recorder.steps == 40
    env.reset()
    assert recorder.steps == 0


def test_actions_are_copied_when_they_are_recorded() -> None:
    env, recorder = recorded(windy)
    action = np.zeros(2, np.float32)
    env.step(action)
    action[:] = 1
    assert recorder._tape.actions[0].tolist() == [0, 0]


def test_a_copy_made_while_attached_is_an_ordinary_environment() -> None:
    env = gym.make("CartPole-v1")
    env.reset(seed=1)
    attachment = put_in(env, Verdict(How.REPLAY))
    twin = copy.deepcopy(env)
    assert follow(twin, [0, 1, 1]) == follow(env, [0, 1, 1])
    assert vars(env.unwrapped)["step"].keeper.steps == 3
    attachment.detach()
    assert not {"step", "reset"} & vars(env.unwrapped).keys()


def test_somebody_who_wrapped_the_hook_keeps_a_working_environment() -> None:
    env, recorder = recorded()
    base = env.unwrapped
    hooked = base.step
    base.step = partial(hooked)
    recorder.remove()
    env.step(0)
    assert recorder.steps == 0


def test_an_environment_that_nobody_seeded_comes_back_in_its_first_episode() -> None:
    # Its generator is made on first use, which is within the first reset.
    one, other = lander(), lander()
    for env in (one, other):
        put_in(env, Verdict(How.REPLAY))
        env.reset()
    follow(one, [0, 2, 2, 1])
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    assert follow(one, [2, 0, 1, 3]) == follow(other, [2, 0, 1, 3])


numbers = st.one_of(
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.builds(np.float32, st.floats(width=32, allow_nan=False)),
    st.lists(st.integers(-128, 127), max_size=5).map(lambda v: np.array(v, np.int8)),
)


def plain(value: Any) -> Any:
    """Return a form in which classes, dtypes and shapes count too."""
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value).__name__, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, list):
        return [plain(item) for item in value]
    return (type(value).__name__, repr(value))


@settings(max_examples=50)
@given(st.lists(st.one_of(st.integers(-5, 5), numbers), max_size=12))
def test_a_tape_keeps_every_action(actions: list[Any]) -> None:
    options = to_data({"a": 2**90, "b": [1.5]})
    written = Tape(resets=[Reset(at=0, seed=2**100, options=options)])
    kept = [a for a in actions if not isinstance(a, str)]
    for action in kept:
        written.add(action)
    header, data = written.write(None)
    read = tape.read(header, data)
    assert plain(list(read.actions)) == plain(kept)
    assert read.resets[0].seed == 2**100
    assert from_data(read.resets[0].options) == {"a": 2**90, "b": [1.5]}


def test_a_damaged_tape_is_corrupt() -> None:
    written = Tape(resets=[Reset(at=0)])
    for action in (1, 2, 3):
        written.add(action)
    header, data = written.write(None)
    for text, blob in (
        (header[:-9], data),
        (header, data[:-8]),
        (header.replace('"at": 0', '"at": 9'), data),
        (header.replace("<i8", "|O8"), data),
    ):
        with pytest.raises(CorruptObject):
            tape.read(text, blob)
