"""A loop over a `DataLoader` of PyTorch: which samples come after a kill, on as many ranks and on more, and from which step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from unbroken.distributed import World

from .sampled import finish, ids, killed, steps_of
from .sampled_script import Order

EPOCHS: dict[str, Any] = {"samples": 64, "every": 11, "total": 24}
"""On two ranks 8 steps are an epoch; 11 is after three steps of the second."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    return finish(tmp_path_factory.mktemp("undisturbed") / "run", 2, **EPOCHS)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("interrupted") / "run"
    killed(root, 2, 11, **EPOCHS, hold=13)
    return root


@pytest.mark.parametrize("cold", ["", "order"])
def test_on_two_ranks_what_is_left_of_the_epoch_and_the_next_one_are_the_same(
    undisturbed: list[list[dict[str, Any]]], interrupted: Path, tmp_path: Path, cold: str
) -> None:
    """G7: the position comes back and the order does not. Right: both, on each rank, in this epoch and the next."""
    root = tmp_path / "run"
    shutil.copytree(interrupted, root)
    resumed = finish(root, 2, **EPOCHS, cold=cold)
    same = [ids(told) == ids(whole, start=11) for told, whole in zip(resumed, undisturbed, strict=True)]
    assert [told[0]["start"] for told in resumed] == [11, 11]
    assert same == [not cold] * 2
    assert (resumed[0][-1] == undisturbed[0][-1]) is not bool(cold)
    assert ids(undisturbed[0]) != ids(undisturbed[1])
    for first in (0, 8, 16):
        epoch = [ids(told, start=first, until=first + 8) for told in undisturbed]
        assert sorted(one for rank in epoch for step in rank for one in step) == list(range(64))


MORE: dict[str, Any] = {"samples": 96, "batch": 3, "every": 4, "total": 10}
"""Four steps of two ranks are 24 samples; the 72 that are left are six steps of four ranks."""


@pytest.mark.parametrize("cold", ["", pytest.param("order", marks=pytest.mark.exactness)])
def test_twice_as_many_ranks_go_on_in_the_global_order(tmp_path: Path, cold: str) -> None:
    """G9: samples are left out or come twice. Right: the order does not depend on the number of ranks, and is kept; what
    cannot be is said. `strict` refuses: tests/engine/test_ranks.py."""
    root = tmp_path / "run"
    before = killed(root, 2, 4, **MORE, hold=5)
    after = finish(root, 4, **MORE, cold=cold)
    assert [told[0]["start"] for told in after] == [4] * 4
    assert all("the number of ranks was 2 and is 4" in told[0]["changes"][0] for told in after)
    steps = [*zip(*(ids(told, until=4) for told in before), strict=True), *zip(*map(ids, after), strict=True)]
    had = [one for step in steps for rank in step for one in rank]
    expected = [one for batch in Order(96, World(rank=0, size=1), batch=3) for one in batch]
    assert sorted(expected) == list(range(96))
    assert (had == expected) is not bool(cold)


@pytest.mark.parametrize(
    "cold",
    ["", "order", *(pytest.param(part, marks=pytest.mark.exactness) for part in ("policy", "optimizer"))],
)
def test_the_same_command_goes_on_at_the_last_multiple_of_the_interval(
    preempted: tuple[Path, dict[str, Any], list[list[int]]], tmp_path: Path, cold: str
) -> None:
    """G12: after six hours a preempted run begins at step 1. Right: started again it goes on by itself; killed at step 37
    with saves every 10 steps it loses seven steps, and ends as if nothing had happened."""
    before, end, whole = preempted
    root = tmp_path / before.name
    shutil.copytree(before, root)
    (second,) = finish(root, 1, **HOURS, cold=cold)
    assert second[0] == {"start": 30, "changes": []}
    assert (ids(second) == whole[30:]) is (cold != "order")
    assert (second[-1] == end) is not bool(cold)
    assert steps_of(root)[0] == 50


HOURS: dict[str, Any] = {"every": 10, "total": 50, "hold": 37}


@pytest.fixture(scope="module")
def preempted(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any], list[list[int]]]:
    """A run that was killed at step 37; and the end and the samples of an undisturbed one."""
    directory = tmp_path_factory.mktemp("preempted")
    (whole,) = finish(directory / "whole", 1, **HOURS)
    (first,) = killed(directory / "run", 1, 30, **HOURS)
    assert (first[0]["start"], first[-1]["at"]) == (0, 37)
    return directory / "run", whole[-1], ids(whole)
