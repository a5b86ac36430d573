from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from unbroken.capture import probe as probing
from unbroken.capture import registry
from unbroken.capture.environments import How, Verdict, attach, known
from unbroken.capture.probe import probe, probe_factory
from unbroken.capture.trial import compare, judge
from unbroken.errors import ConfigError
from unbroken.testing.env_oracle import three_way
from unbroken.types import Fidelity

WORLDS = Path(__file__).parent / "worlds"


@pytest.fixture(autouse=True)
def liars(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(WORLDS))
    return importlib.import_module("liars")


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "FrozenLake-v1", "LunarLander-v3", "BipedalWalker-v3"],
)
def test_a_known_family_is_judged_by_its_name_and_that_holds_in_the_trial(name: str) -> None:
    verdict = known(gym.make(name))
    assert verdict is not None
    assert verdict.fidelity is Fidelity.EXACT
    assert judge(partial(gym.make, name)) == verdict


@pytest.mark.parametrize(
    ("name", "how", "fidelity", "reason"),
    [
        ("Honest", How.STRUCTURAL, Fidelity.EXACT, ""),
        ("Rebuilt", How.STRUCTURAL, Fidelity.EXACT, ""),
        ("OnTheProcess", How.STRUCTURAL, Fidelity.EXACT, ""),
        ("Hidden", How.REPLAY, Fidelity.EXACT, ""),
        ("CarriesOver", How.WHOLE_REPLAY, Fidelity.EXACT, ""),
        ("DropsItsPhysics", How.STRUCTURAL, Fidelity.EXACT, ""),
        ("DropsItsEngine", How.STRUCTURAL, Fidelity.EXACT, ""),
        ("OnTheModule", How.STRUCTURAL, Fidelity.APPROXIMATE, "out of reach, in liars._module_generator"),
        ("Clocked", How.STRUCTURAL, Fidelity.APPROXIMATE, "clock (in liars)"),
        ("Raises", How.STRUCTURAL, Fidelity.APPROXIMATE, "no physics today"),
    ],
)
def test_the_trial_finds_the_way_that_holds(name: str, how: How, fidelity: Fidelity, reason: str) -> None:
    verdict = probe(gym.make(f"{name}-v0"))
    assert (verdict.how, verdict.fidelity) == (how, fidelity)
    assert reason in verdict.reason
    assert bool(verdict.reason) == bool(reason)


def test_an_environment_that_never_answers_costs_no_more_than_the_timeout() -> None:
    verdict = probe(gym.make("NeverAnswers-v0"), timeout=3)
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "longer than 3 s" in verdict.reason


def test_a_process_that_an_environment_leaves_behind_does_not_hold_up_the_probe(liars: Any) -> None:
    verdict = probe_factory(liars.LeavesAChild, timeout=50)
    assert (verdict.how, verdict.fidelity, verdict.reason) == (How.STRUCTURAL, Fidelity.EXACT, "")


def test_a_probe_that_has_said_its_verdict_is_believed_though_it_does_not_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that does nothing but that stands in for the interpreter."""
    told = Verdict(How.REPLAY, Fidelity.EXACT, step_seconds=0.5)
    (tmp_path / "said").write_text(probing._written(told))
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\ncp "{tmp_path}/said" "$3"\nkill -STOP $$\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert probe_factory(partial(gym.make, "CartPole-v1"), timeout=3) == told


def test_an_environment_that_ends_its_process_is_named() -> None:
    verdict = probe(gym.make("Crashes-v0"))
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "ended its process" in verdict.reason


def test_the_live_environment_is_not_touched() -> None:
    env = gym.make("Honest-v0")
    env.reset(seed=1)
    before = (env.unwrapped.np_random.bit_generator.state, vars(env.unwrapped)["x"])
    probe(env)
    assert (env.unwrapped.np_random.bit_generator.state, vars(env.unwrapped)["x"]) == before


def test_without_a_spec_it_is_tried_where_it_is(liars: Any) -> None:
    found = {kind.__name__: probe(kind()) for kind in (liars.Honest, liars.OnTheProcess, liars.Hidden)}
    assert found == {
        "Honest": Verdict(How.STRUCTURAL),
        "OnTheProcess": Verdict(How.STRUCTURAL),
        "Hidden": Verdict(How.REPLAY),
    }
    assert probe_factory(liars.Hidden).how is How.REPLAY


def test_what_only_a_new_one_could_bring_back_is_approximate_without_a_spec(liars: Any) -> None:
    verdict = probe(liars.CarriesOver())
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "differs" in verdict.reason


class Stubborn:
    """An argument that can be neither copied nor pickled, like a handle of a simulator."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot be copied")

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Reluctant(Stubborn):
    """One that can be copied, and not pickled."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self


@pytest.mark.parametrize("argument", [Stubborn, Reluctant])
def test_arguments_that_cannot_go_to_another_process_are_no_obstacle(
    liars: Any, monkeypatch: pytest.MonkeyPatch, argument: type[Stubborn]
) -> None:
    monkeypatch.setattr(liars.Hidden, "__init__", lambda self, handle: liars.Honest.__init__(self))
    env = gym.make("Hidden-v0", handle=argument())
    assert probe(env) == Verdict(How.REPLAY)


def test_an_unknown_wrapper_is_probed_too(liars: Any) -> None:
    env = liars.Dreaming(gym.make("CartPole-v1"))
    assert known(env) is None
    verdict = probe_factory(lambda: liars.Dreaming(gym.make("CartPole-v1")))
    assert verdict.fidelity is Fidelity.APPROXIMATE


def test_a_capturer_of_the_users_own_is_used_and_tried() -> None:
    script = """
import gymnasium as gym, liars
from unbroken.capture.registry import register_env_capturer
from unbroken.capture.probe import probe_factory
register_env_capturer(liars.Hidden, capture=lambda env: {"x": env.position()},
                      restore=lambda env, state: env.place(state["x"]))
good = probe_factory(liars.Hidden)
register_env_capturer(liars.Hidden, capture=lambda env: {}, restore=lambda env, state: None)
bad = probe_factory(liars.Hidden)
print(good.fidelity.value, good.how.name, "|", bad.fidelity.value)
"""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(WORLDS)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "exact CAPTURER | approximate", done.stderr


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 seconds"):
        probe_factory(dict[str, Any], timeout=0)


def test_what_is_known_of_a_family_stands_above_a_verdict_from_elsewhere(liars: Any) -> None:
    env = gym.make("LunarLander-v3")
    env.reset(seed=1)
    attachment = attach(env, verdict=Verdict(How.STRUCTURAL))
    assert attachment.verdict == Verdict(How.REPLAY)
    assert "step" in vars(env.unwrapped)
    attachment.detach()
    other = attach(liars.Honest(), verdict=Verdict(How.REPLAY))
    assert other.verdict.how is How.REPLAY
    other.detach()


@pytest.mark.parametrize(
    ("name", "where"),
    [("CountsOnTheClass", "liars.CountsOnTheClass.total"), ("CountsOnTheModule", "liars._counted")],
)
def test_state_that_shows_late_is_seen_where_it_stands(name: str, where: str) -> None:
    verdict = probe(gym.make(f"{name}-v0"))
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert where in verdict.reason


def test_an_environment_nobody_looked_at_is_declared_approximate(liars: Any) -> None:
    attachment = attach(liars.Honest())
    assert attachment.verdict.fidelity is Fidelity.APPROXIMATE
    assert "not probed" in attachment.verdict.reason
    attachment.detach()


def handle_capturer(liars: Any) -> None:
    """What people write first: the simulator's own snapshot, by its number."""
    kept: list[float] = []

    def capture(env: Any) -> dict[str, Any]:
        kept.append(env.position())
        return {"snapshot": len(kept) - 1}

    registry.register_env_capturer(
        liars.Hidden, capture=capture, restore=lambda env, state: env.place(kept[state["snapshot"]])
    )


@pytest.fixture
def unregistered() -> Iterator[None]:
    before = registry.every()
    yield
    registry._captors.clear()
    registry.adopt(before)


def test_a_capturer_that_saves_a_handle_is_found_before_training(liars: Any, unregistered: None) -> None:
    handle_capturer(liars)
    verdict = probe(liars.Hidden())
    assert (verdict.how, verdict.fidelity) == (How.CAPTURER, Fidelity.APPROXIMATE)
    assert "means nothing elsewhere" in verdict.reason
    assert "in another process" in verdict.reason


def test_a_capturer_that_forgets_something_is_found_before_training(liars: Any, unregistered: None) -> None:
    registry.register_env_capturer(liars.Hidden, capture=lambda env: {}, restore=lambda env, state: None)
    verdict = probe(liars.Hidden())
    assert (verdict.how, verdict.fidelity) == (How.CAPTURER, Fidelity.APPROXIMATE)
    assert "does not bring back all of it" in verdict.reason


def test_a_capturer_that_is_right_is_exact_and_builds_no_second_environment(
    liars: Any, unregistered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register_env_capturer(
        liars.Hidden,
        capture=lambda env: {"x": env.position()},
        restore=lambda env, state: env.place(state["x"]),
    )
    env = gym.make("Hidden-v0")
    monkeypatch.setattr(liars.Hidden, "__init__", None)
    assert probe(env) == Verdict(How.CAPTURER)


def test_where_a_capturer_cannot_be_tried_the_users_word_stands(liars: Any, unregistered: None) -> None:
    registry.register_env_capturer(liars.Raises, capture=lambda env: {}, restore=lambda env, state: None)
    assert probe(liars.Raises()) == Verdict(How.CAPTURER)
    registry.register_env_capturer(liars.Crashes, capture=lambda env: {}, restore=lambda env, state: None)
    assert probe(liars.Crashes()) == Verdict(How.CAPTURER)


def world(name: str) -> gym.Env[Any, Any]:
    """Build one in whichever process."""
    if str(WORLDS) not in sys.path:
        sys.path.insert(0, str(WORLDS))
    importlib.import_module("liars")
    return gym.make(f"{name}-v0")


@pytest.mark.parametrize(
    "name", ["Honest", "Rebuilt", "DropsItsPhysics", "DropsItsEngine", "Hidden", "CarriesOver"]
)
def test_what_the_trial_calls_exact_is_exact_in_a_fresh_process(name: str) -> None:
    verdict = probe(world(name))
    assert verdict.fidelity is Fidelity.EXACT
    outcome = three_way(partial(world, name), before=30, verdict=verdict)
    assert outcome.exact
    assert outcome.told_apart


class Holds(gym.Env[Any, Any]):
    """It holds another environment, under a name of its own, and is no wrapper."""

    def __init__(self, name: str) -> None:
        self.dream = world(name)
        self.observation_space, self.action_space = self.dream.observation_space, self.dream.action_space
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.steps = 0
        return self.dream.reset(seed=int(self.np_random.integers(2**31)))

    def step(self, action: Any) -> Any:
        self.steps += 1
        found = self.dream.step(action)
        return (*found[:3], found[3] or self.steps >= 45, found[4])


@pytest.mark.parametrize(("name", "how"), [("Honest", How.STRUCTURAL), ("Hidden", How.REPLAY)])
def test_an_environment_inside_of_another_is_tried_with_it(name: str, how: How) -> None:
    verdict = probe(Holds(name))
    assert (verdict.how, verdict.fidelity) == (how, Fidelity.EXACT)
    # Beyond its first episode, which began before there was a recorder and cannot be rebuilt without a spec.
    outcome = three_way(partial(Holds, name), before=60, verdict=verdict)
    assert outcome.exact
    assert outcome.told_apart
    if how is How.REPLAY:
        assert not three_way(partial(Holds, name), before=60, verdict=Verdict(How.STRUCTURAL)).exact


def test_an_environment_inside_of_another_that_cannot_be_captured_is_named() -> None:
    verdict = probe(Holds("OnTheModule"))
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "liars._module_generator" in verdict.reason


@pytest.mark.parametrize("name", ["Hidden", "CarriesOver", "OnTheModule", "Clocked", "KeepsAHandle"])
def test_what_the_trial_refuses_goes_wrong_in_a_fresh_process(name: str) -> None:
    # The control of the one above: by its attributes, which the trial did not accept.
    make = partial(world, name)
    assert probe(make()) != Verdict(How.STRUCTURAL)
    try:
        exact = three_way(make, before=30, verdict=Verdict(How.STRUCTURAL)).exact
    except AssertionError as ended:
        exact = "TypeError" not in str(ended)  # the fresh process has no such handle
    assert not exact


@pytest.mark.parametrize("made", ["with a spec", "by its class"])
def test_a_handle_into_the_memory_of_the_process_is_found_in_another_one(liars: Any, made: str) -> None:
    env = gym.make("KeepsAHandle-v0") if made == "with a spec" else liars.KeepsAHandle()
    # In one process alone its attributes are all that is needed.
    assert compare(liars.KeepsAHandle, How.STRUCTURAL).difference == ""
    verdict = probe(env)
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "handle" in verdict.reason
