"""What is not compared is named narrowly: a leaf that is merely called `t_start`, or `t`, is compared."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor

from unbroken.capture.source import policy_of_loaded
from unbroken.capture.volatile import VOLATILE, volatile_places, without_clocks
from unbroken.state.diff import compare
from unbroken.state.nodes import Dict, Object, Scope
from unbroken.state.snapshot import Component, Snapshot
from unbroken.state.walk import capture


def places(**roots: object) -> set[str]:
    return set(volatile_places(capture(roots, policy_of_loaded())))


class Timed:
    """Has attributes by the same names, and they are its own."""

    def __init__(self) -> None:
        self.t_start = self.episode_times = self.time_queue = self.start_time = 1.0
        self.episode = {"t": 1.0}
        self.t = 0


class OwnMonitor(Monitor[Any, Any]):
    pass


class Algorithm:
    def __init__(self) -> None:
        self.ep_info_buffer = deque([{"r": 1.0, "l": 2, "t": 0.5}])
        self._last_infos = [{"episode": {"r": 1.0, "l": 2, "t": 0.5}}]
        self.logger = {"time/fps": 5, "time/iterations": 7}


def test_an_attribute_is_a_clock_by_its_class_and_not_by_its_name() -> None:
    assert places(own=Timed()) == set()


@pytest.mark.parametrize("cls", [Monitor, OwnMonitor])
def test_the_clocks_of_a_known_class_are_those_of_its_derived_classes_too(cls: type[Any]) -> None:
    found = places(env=cls(gym.make("CartPole-v1")))
    assert found == {"env/episode_times", "env/<file>/episode_times", "env/<file>/t_start"}


@pytest.mark.parametrize(
    ("cls", "clock"), [(Monitor, "episode_times"), (RecordEpisodeStatistics, "time_queue")]
)
def test_the_class_may_have_been_made_in_a_function_or_stand_under_another_name(
    cls: type[Any], clock: str
) -> None:
    made = type("Monitor", (cls,), {"__module__": "a.program.that.is.not.here"})
    renamed = type("Timed", (cls,), {"__module__": __name__})  # this module has another class of that name
    for derived in (made, renamed):
        assert places(env=derived(gym.make("CartPole-v1"))) == {f"env/{clock}"}


def test_what_our_captors_add_is_known_by_its_key_alone() -> None:
    file = Dict(v={"rows": 0, "episode_times": 1.0, "t_start": 2.0})
    nowhere = Object(c="a.program:train.<locals>.Mine", x={"elapsed": 1.0, "file": file, "rows": 5})
    state = Snapshot({"env_states": Component("env_states", {"mine": nowhere})})
    assert volatile_places(state) == {
        "mine/<elapsed>",
        "mine/<file>/episode_times",
        "mine/<file>/t_start",
    }


def test_an_attribute_that_is_merely_called_so_is_compared_whatever_the_class_is_called() -> None:
    local = type("Local", (Timed,), {"__module__": "a.program.that.is.not.here"})
    assert places(own=local()) == set()


def test_clocks_in_dictionaries_are_found_by_their_keys() -> None:
    assert places(model=Algorithm()) == {
        "model/ep_info_buffer/0/t",
        "model/_last_infos/0/episode/t",
        "model/logger/time~1fps",
    }


def test_a_dictionary_that_is_no_episode_has_a_time_of_its_own() -> None:
    assert places(world={"episode": {"t": 3, "x": 1}}) == set()


def test_worker_processes_are_looked_into() -> None:
    statistics = Object(c="gymnasium.wrappers.common:RecordEpisodeStatistics")
    inside = Scope(p="worker 0", roots={"env": statistics})
    state = Snapshot({"env_states": Component("env_states", {"workers": inside})})
    assert volatile_places(state) == {"workers/env/episode_start_time", "workers/env/time_queue"}


def test_two_states_are_compared_but_for_their_clocks() -> None:
    one, other, timed = Algorithm(), Algorithm(), Timed()
    other.ep_info_buffer[0]["t"] = 9.0
    timed.t_start = 2.0
    a = capture({"model": one, "own": Timed()}, policy_of_loaded())
    b = capture({"model": other, "own": timed}, policy_of_loaded())
    assert [d.place for d in without_clocks(compare(a, b), a, b)] == ["own/t_start"]


def test_the_list_can_be_printed() -> None:
    lines = [str(leaf) for leaf in VOLATILE]
    assert "Monitor/episode_times: wall times of episodes" in lines
    assert len(set(lines)) >= len(lines) - 1, "the statistics of one environment and of several"
