"""What a proof does not compare is named narrowly: a leaf that is merely called `t` is compared."""

from __future__ import annotations

import pytest

from unbroken.proving.volatile import is_volatile


@pytest.mark.parametrize(
    "place",
    [
        "model/ep_info_buffer/3/t",
        "model/_last_infos/0/episode/t",
        "model/env/venv/envs/0/env/episode_times",
        "model/env/<workers>/0/env/episode_times/4",
        "model/env/venv/envs/0/<t_start>/elapsed",
        "env/episode_start_time",
        "env/time_queue/0",
        "model/start_time",
        "model/logger/name_to_value/time~1fps",
    ],
)
def test_wall_clock_times_are_left_out(place: str) -> None:
    assert is_volatile(place)


@pytest.mark.parametrize(
    "place",
    [
        "t",
        "env/t",
        "env/state/t",
        "model/ep_info_buffer/3/r",
        "model/ep_info_buffer/3/tt",
        "env/episode/total",
        "env/start_time",
        "env/episode_times_two",
        "env/my_time_queue",
        "model/logger/name_to_value/time~1iterations",
    ],
)
def test_everything_else_is_compared(place: str) -> None:
    assert not is_volatile(place)
