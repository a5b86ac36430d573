from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from unbroken.capture.ale import StickyTracker, emulator_state
from unbroken.capture.environments import attach, env_policy
from unbroken.errors import StateMismatch
from unbroken.state.graft import plan
from unbroken.state.walk import capture
from unbroken.testing.env_oracle import _follow as follow
from unbroken.testing.env_oracle import three_way
from unbroken.types import Fidelity

ale_py = pytest.importorskip("ale_py")


def atari(game: str, **options: Any) -> gym.Env[Any, Any]:
    gym.register_envs(ale_py)
    return gym.make(f"ALE/{game}-v5", **options)


def trained_on(game: str) -> gym.Env[Any, Any]:
    """What training code makes of it: no-ops, frame skip with maximum, life loss, small grey pictures."""
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    return AtariWrapper(atari(game, frameskip=1))


def preprocessed(game: str, **options: Any) -> gym.Env[Any, Any]:
    """Gymnasium's own chain: no-ops, frame skip with maximum, small grey pictures, the last four of them."""
    pytest.importorskip("cv2")
    inner = gym.wrappers.AtariPreprocessing(atari(game, frameskip=1, **options), terminal_on_life_loss=True)
    return gym.wrappers.FrameStackObservation(inner, 4)


FULL = [
    pytest.param(
        partial(make, game, repeat_action_probability=sticky),
        before,
        0,
        marks=pytest.mark.exactness,
        id=f"{game}, sticky {sticky}, {make.__name__}, {before} steps",
    )
    for game in ("Pong", "Breakout", "SpaceInvaders", "Seaquest")
    for sticky in (0.0, 0.25)
    for make in (atari, preprocessed)
    for before in (3, 700)
]


@pytest.mark.parametrize(
    ("make", "before", "first"),
    [
        pytest.param(partial(atari, "Pong"), 57, 0, id="pong"),
        pytest.param(partial(atari, "Breakout"), 130, 0, id="breakout"),
        pytest.param(partial(atari, "Breakout", frameskip=(2, 5)), 41, 0, id="random skip"),
        pytest.param(partial(atari, "Pong", repeat_action_probability=0.0), 33, 0, id="not sticky"),
        pytest.param(partial(trained_on, "Pong"), 1, 0, id="wrapped, one step"),
        pytest.param(partial(trained_on, "Breakout"), 90, 20, id="wrapped, attached late"),
        pytest.param(partial(preprocessed, "Breakout"), 60, 0, id="preprocessed"),
        pytest.param(
            partial(preprocessed, "Pong", repeat_action_probability=0.0), 25, 0, id="preprocessed, not sticky"
        ),
        *FULL,
    ],
)
def test_a_game_goes_on_in_a_fresh_process(make: Callable[[], Any], before: int, first: int) -> None:
    outcome = three_way(make, before=before, first=first)
    assert outcome.readback == []
    assert outcome.exact
    assert outcome.told_apart
    assert outcome.verdict.fidelity is Fidelity.EXACT
    assert [note for note in outcome.notes if note.kind == "approximate"] == []


def test_the_last_observation_comes_back_although_the_emulators_screen_is_stale() -> None:
    one, other = preprocessed("Breakout"), preprocessed("Breakout")
    pictures: list[Any] = []
    for seed, env in ((1, one), (2, other)):
        observation, _ = env.reset(seed=seed)
        attach(env)
        for _ in range(30):
            observation = env.step(2 + seed % 2)[0]
        pictures.append({"last": np.array(observation)})
    seen = {"env": one, "training": pictures[0]}
    plan(capture(seen, env_policy()), {"env": other, "training": pictures[1]}, env_policy()).apply()
    assert pictures[1]["last"].tobytes() == pictures[0]["last"].tobytes()
    frames = [np.array(env.obs_queue).tobytes() for env in (one, other)]  # type: ignore[attr-defined]
    assert frames[0] == frames[1] == pictures[0]["last"].tobytes()
    # Whoever drew the observation anew would get another one, until the next frame.
    screens = [env.unwrapped.ale.getScreenGrayscale() for env in (one, other)]  # type: ignore[attr-defined]
    assert not np.array_equal(*screens)
    assert follow(one, [1, 3, 3]) == follow(other, [1, 3, 3])
    screens = [env.unwrapped.ale.getScreenGrayscale() for env in (one, other)]  # type: ignore[attr-defined]
    assert np.array_equal(*screens)


def wrong_continuations(
    make: Callable[[], Any], spoil: Callable[[StickyTracker], None], cuts: int = 40
) -> int:
    """Count, over many cuts of one game, the restores that go on differently. `spoil` may break them."""
    rng = np.random.default_rng(4)
    one, other = make(), make()
    one.reset(seed=1)
    other.reset(seed=2)
    attachments = [attach(env) for env in (one, other)]
    tracker = vars(other.unwrapped)["step"].keeper
    assert isinstance(tracker, StickyTracker)
    wrong = 0

    def act(count: int) -> list[Any]:
        return [int(a) for a in rng.integers(0, one.action_space.n, size=count)]

    for _ in range(cuts):
        follow(one, act(int(rng.choice([0, 1, 2, 3, 25]))))
        plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
        spoil(tracker)
        actions = act(10)
        wrong += follow(one, actions) != follow(other, actions)
        if rng.random() < 0.2:
            one.reset()
    for attachment in attachments:
        attachment.detach()
    return wrong


@pytest.mark.parametrize("stickiness", [0.25, 0.9])
def test_the_action_that_the_emulator_may_repeat_is_known_at_every_step(stickiness: float) -> None:
    make = partial(atari, "Breakout", frameskip=1, repeat_action_probability=stickiness)
    assert wrong_continuations(make, lambda tracker: None) == 0


def test_the_state_of_the_emulator_alone_would_not_do() -> None:
    # The control of the test above: the same restores with another hidden action, the state untouched.
    def spoil(tracker: StickyTracker) -> None:
        state = tracker.ale.cloneState(include_rng=True)
        before = emulator_state(tracker.ale)
        tracker._prime(3)
        tracker.ale.restoreState(state)
        assert emulator_state(tracker.ale) == before

    make = partial(atari, "Breakout", frameskip=1, repeat_action_probability=0.9)
    assert wrong_continuations(make, spoil) > 0


def test_somebody_who_acts_on_the_emulator_directly_is_noticed() -> None:
    one, other = atari("Breakout", frameskip=1), atari("Breakout", frameskip=1)
    one.reset(seed=1)
    other.reset(seed=2)
    attach(one)
    attach(other)
    rng = np.random.default_rng(0)
    for _ in range(30):
        for _ in range(3):
            one.unwrapped.ale.act(ale_py.Action(int(rng.choice([0, 1, 3, 4]))), 1.0)  # type: ignore[attr-defined]
        plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
        actions = [int(a) for a in rng.integers(0, 4, size=5)]
        assert follow(one, actions) == follow(other, actions)


def test_another_game_is_an_error_before_anything_is_touched() -> None:
    one, other = atari("Pong"), atari("Breakout")
    one.reset(seed=1)
    other.reset(seed=1)
    before = emulator_state(other.unwrapped.ale)  # type: ignore[attr-defined]
    graft = plan(capture({"env": one}, env_policy()), {"env": other}, env_policy())
    with pytest.raises(StateMismatch, match="pong"):
        graft.apply()
    assert emulator_state(other.unwrapped.ale) == before  # type: ignore[attr-defined]


def test_a_copy_made_while_attached_is_an_ordinary_environment() -> None:
    env = atari("Pong")
    env.reset(seed=1)
    attachment = attach(env)
    twin = copy.deepcopy(env.unwrapped)
    attachment.detach()
    assert "step" not in vars(env.unwrapped)
    twin.reset(seed=1)
    env.reset(seed=1)
    assert follow(twin, [2, 2, 3]) == follow(env.unwrapped, [2, 2, 3])
