from __future__ import annotations

import gc
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from tests.engine.simulation import Clock
from unbroken.capture.environments import How, Verdict, attach, put_in
from unbroken.capture.made_later import MadeLaterWarning
from unbroken.capture.replay import Recorder
from unbroken.capture.replay_cost import (
    LIMIT,
    Cost,
    Moments,
    about,
    side_by_side,
    tell,
    teller_of,
    tellers,
    total,
)
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.testing.env_oracle import _follow as follow

pytest.importorskip("Box2D")


def watched(seconds: float = 0.5, **options: Any) -> tuple[gym.Env[Any, Any], Recorder, GraftSource]:
    """Return an environment under a clock by which a reset and each step take `seconds`, as a source."""
    env = gym.make("LunarLander-v3")
    env.action_space.seed(1)
    env.reset(seed=1)
    ticks = count()
    recorder = Recorder(env.unwrapped, clock=lambda: next(ticks) * seconds, **options)
    recorder.install()
    source = GraftSource({"env": env}, policy_of_loaded())
    source.capture()
    return env, recorder, source


def notes(source: GraftSource) -> list[str]:
    return [note.detail for note in source.capture().notes if note.kind == "replay"]


def test_each_checkpoint_says_what_its_restore_costs() -> None:
    env, _, source = watched()
    env.reset()
    follow(env, [0] * 7)
    assert notes(source) == ["a restore replays 7 steps, about 4.0 s"]
    env.reset()
    assert notes(source) == ["a restore replays 0 steps, about 0.5 s"]


def test_environments_that_are_replayed_one_after_the_other_add_up() -> None:
    one, two = watched()[0], watched()[0]
    plain = gym.make("CartPole-v1")
    source = GraftSource({"envs": [one, two], "eval": plain}, policy_of_loaded())
    source.capture()
    for env in (one, two):
        env.reset()
        follow(env, [0] * 3)
    assert notes(source) == ["a restore replays 6 steps of 2 environments, about 4.0 s"]
    assert notes(GraftSource({"eval": plain}, policy_of_loaded())) == []


def test_the_moment_comes_with_the_first_look_at_an_episode_after_a_long_one() -> None:
    env, _, source = watched()
    env.reset()
    cheap = int(LIMIT / 0.5) - 1  # the reset takes as long as a step
    looks: list[bool] = []
    for steps in (cheap, cheap + 1, 20, 1, 1):
        follow(env, [0] * steps)
        looks.append(source.is_good_moment())
        env.reset()
    assert looks == [False, False, False, True, False]


def saved_steps(root: Path, every: Every, *, episode: int = 20, asked_at: int = -1) -> list[int]:
    """Train for 60 steps of a second each; return when a save was made."""
    env, _, source = watched()
    env.reset()
    saved: list[int] = []
    clock = Clock()
    with CheckpointEngine(source, Settings(root=root, every=every), clock=clock) as engine:
        engine.resume(step=0)
        for step in range(1, 61):
            follow(env, [0])
            clock.now += 1.0
            if step % episode == 0:
                env.reset()
            if step == asked_at:
                engine.request_save("asked for")
            if engine.step(step):
                engine.wait()
                saved.append(step)
    return saved


def test_the_engine_saves_early_at_the_start_of_an_episode_where_that_is_cheaper(tmp_path: Path) -> None:
    # Due after at most 30 s, of which 3 are for the first write, which nobody has measured; early from 15 s on.
    assert saved_steps(tmp_path / "twenties", Every(max_loss=30)) == [20, 40, 60]
    assert saved_steps(tmp_path / "short", Every(max_loss=30), episode=5) == [29, 58]


def test_no_save_comes_later_for_it_than_the_loss_allows(tmp_path: Path) -> None:
    # No episode begins in time: a restore from each of these replays up to 60 steps, half a minute.
    assert saved_steps(tmp_path, Every(max_loss=30), episode=100) == [29, 58]


def test_a_number_of_steps_means_these_steps(tmp_path: Path) -> None:
    assert saved_steps(tmp_path, Every(steps=8)) == [8, 16, 24, 32, 40, 48, 56]


def test_a_save_that_is_asked_for_comes_at_once(tmp_path: Path) -> None:
    assert 35 in saved_steps(tmp_path, Every(max_loss=30), asked_at=35)


def test_a_history_that_only_grows_is_no_reason_to_prefer_a_moment() -> None:
    env, recorder, source = watched(whole=True)
    for _ in range(2):
        follow(env, [0] * 20)
        assert not source.is_good_moment()
        env.reset()
        assert not source.is_good_moment()
    assert recorder.cost().seconds > LIMIT


def test_what_a_restore_has_taken_is_known_after_it() -> None:
    one, _, source = watched()
    one.reset()
    follow(one, [0] * 9)
    _, recorder, taken_up = watched(seconds=2.0)
    taken_up.plan(source.capture()).apply()
    # All of it was one stretch of time, between two looks at the clock.
    assert recorder.cost() == Cost(1, 9, 2.0, 2.0)


def test_environments_elsewhere_are_told_of_by_who_knows() -> None:
    class Vector:
        pass

    vector = Vector()
    assert teller_of(vector) is None
    workers = [Cost(1, 5, 3.0, 3.0), Cost(1, 8, 4.0, 1.0)]
    tell(vector, lambda: side_by_side(workers, processors=2))
    teller = teller_of(vector)
    assert teller is not None
    assert teller() == Cost(2, 13, 4.0, 3.0)  # the slower of the two is what it takes
    assert teller_of(Vector()) is None
    # On one processor they wait for each other.
    assert side_by_side(workers, processors=1) == Cost(2, 13, 7.0, 4.0)


def test_what_is_closed_or_gone_costs_nothing() -> None:
    class Vector:
        closed = False

    vector, other = Vector(), Vector()
    for one in (vector, other):
        tell(one, lambda: Cost(1, 5, 3.0, 3.0))
    known = tellers([vector, other])
    assert total(known) == Cost(2, 10, 6.0, 6.0)
    vector.closed = True
    assert total(known) == Cost(1, 5, 3.0, 3.0)
    del other, one
    gc.collect()
    assert total(known) == Cost()


def test_environments_that_come_later_are_told_of_and_those_that_go_are_not() -> None:
    env = watched()[0]
    live: dict[str, Any] = {"envs": []}
    source = GraftSource(live, policy_of_loaded())
    assert notes(source) == []
    env.reset()
    follow(env, [0] * 3)
    live["envs"].append(env)
    with pytest.warns(MadeLaterWarning, match="envs/0"):
        assert notes(source) == ["a restore replays 3 steps, about 2.0 s"]
    live["envs"].clear()
    assert notes(source) == []


def test_the_moment_is_the_first_look_after_a_long_one() -> None:
    moments = Moments(limit=1.0)
    assert [moments.has_come(Cost(1, 1, 3.0, s)) for s in (0.5, 3.0, 3.0, 1.0, 1.0)] == [
        False, False, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "less than 0.1 s"), (0.11, "about 0.1 s"), (9.1, "about 9.1 s"), (1234.5, "about 1,234 s")],
)
def test_durations_are_said_in_words(seconds: float, said: str) -> None:
    assert about(seconds) == said


@pytest.mark.parametrize(
    ("name", "steps"), [("LunarLander-v3", 1_000), ("BipedalWalker-v3", 50_000)], ids=["episode", "history"]
)
def test_the_verdict_says_before_training_how_long_a_restore_may_take(name: str, steps: int) -> None:
    env = gym.make(name)
    env.reset(seed=1)
    verdict = attach(env).verdict
    assert verdict.most_steps == steps
    assert verdict.step_seconds > 0
    assert f"(a restore replays up to {steps:,} steps, " in str(verdict)


def test_an_environment_of_an_unknown_family_is_not_stepped_to_find_out() -> None:
    env = gym.make("CartPole-v1")
    env.reset(seed=1)
    attachment = put_in(env, Verdict(How.REPLAY, step_seconds=0.25))
    attachment.detach()
    assert attachment.verdict.step_seconds == 0.25
    assert put_in(gym.make("Acrobot-v1"), Verdict(How.STRUCTURAL)).verdict.cost == ""


def test_a_verdict_without_a_limit_says_what_a_thousand_steps_take() -> None:
    make = partial(Verdict, How.REPLAY)
    assert make(step_seconds=0.002).cost == "a restore replays the episode, about 2.0 s for 1,000 steps"
    assert make(most_steps=10).cost == "a restore replays up to 10 steps"
