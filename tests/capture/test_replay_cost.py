from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from unbroken.capture.environments import How, Verdict, attach, put_in
from unbroken.capture.replay import Recorder
from unbroken.capture.replay_cost import LIMIT, Cost, Patience, about, side_by_side, tell, teller_of
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.testing.env_oracle import follow

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


def test_a_save_that_is_due_waits_for_the_start_of_an_episode() -> None:
    env, _, source = watched()
    env.reset()
    follow(env, [0] * 20)
    env.reset()
    waits: list[bool] = []
    for _ in range(15):
        waits.append(source.puts_off())
        follow(env, [0])
    cheap = int(LIMIT / 0.5) - 1  # the reset takes as long as a step
    assert waits == [False] * (cheap + 1) + [True] * (15 - cheap - 1)
    env.reset()
    assert not source.puts_off()


def test_it_waits_for_no_more_steps_than_the_longest_episode_has_had() -> None:
    env, recorder, source = watched()
    env.reset()
    follow(env, [0] * 20)
    env.reset()
    follow(env, [0] * 15)
    waited = 0
    while source.puts_off():
        env.unwrapped.step(0)
        waited += 1
        assert waited < 100
    assert waited == 20
    assert recorder.steps == 35
    assert source.puts_off()  # the next one that is due waits anew


def saved_steps(root: Path, asked_at: int = -1) -> list[int]:
    """Save every 8 steps of an environment with episodes of 20 steps; return when that was."""
    env, _, source = watched()
    env.reset()
    saved: list[int] = []
    with CheckpointEngine(source, Settings(root=root, every=8)) as engine:
        engine.resume(step=0)
        for step in range(1, 61):
            follow(env, [0])
            if step % 20 == 0:
                env.reset()
            if step == asked_at:
                engine.request_save("asked for", at_once=False)
            if engine.step(step):
                engine.wait()
                saved.append(step)
    return saved


def test_the_engine_saves_at_the_start_of_an_episode_where_that_is_cheaper(tmp_path: Path) -> None:
    # The first episode may be of any length; from then on a replay of 10 steps is too long.
    assert saved_steps(tmp_path) == [8, 16, 24, 40, 48, 60]


def test_a_save_that_is_asked_for_never_waits(tmp_path: Path) -> None:
    assert 35 in saved_steps(tmp_path, asked_at=35)


def test_nothing_waits_before_an_episode_has_ended() -> None:
    env, recorder, source = watched()
    for _ in range(3 * int(LIMIT / 0.5)):
        env.unwrapped.step(0)
    assert recorder.cost().seconds > LIMIT
    assert not source.puts_off()


def test_a_history_that_only_grows_is_no_reason_to_wait() -> None:
    env, recorder, source = watched(whole=True)
    for _ in range(2):
        follow(env, [0] * 20)
        env.reset()
    assert recorder.cost().seconds > LIMIT
    assert not source.puts_off()


def test_what_a_restore_has_taken_is_known_after_it() -> None:
    one, _, source = watched()
    one.reset()
    follow(one, [0] * 9)
    _, recorder, taken_up = watched(seconds=2.0)
    taken_up.plan(source.capture()).apply()
    # All of it was one stretch of time, between two looks at the clock.
    assert recorder.cost() == Cost(1, 9, 2.0, 2.0, 0, 0)


def test_environments_elsewhere_are_told_of_by_who_knows() -> None:
    class Vector:
        pass

    vector = Vector()
    assert teller_of(vector) is None
    workers = [Cost(1, 5, 3.0, 3.0, 9, 7), Cost(1, 8, 4.0, 1.0, 9, 8)]
    tell(vector, lambda: side_by_side(workers, processors=2))
    teller = teller_of(vector)
    assert teller is not None
    assert teller() == Cost(2, 13, 4.0, 3.0, 9, 8)  # the slower of the two is what it takes
    assert teller_of(Vector()) is None
    # On one processor they wait for each other.
    assert side_by_side(workers, processors=1) == Cost(2, 13, 7.0, 4.0, 9, 8)


def test_patience_ends_and_begins_anew() -> None:
    patience = Patience(limit=1.0)
    long = [Cost(1, n, 3.0, 3.0, taken=n, longest=2) for n in range(100, 106)]
    assert [patience.waits(cost) for cost in long] == [True, True, False, True, True, False]


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
