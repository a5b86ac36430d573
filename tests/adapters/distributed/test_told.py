"""Two ranks of which one, or both, are told to end by a signal: one checkpoint of all, and an end that loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import Launch, assert_whole, differing, repository, results, steps_of
from tests.engine.ranks import finish as finish_by_hand

from .launch import SECONDS, finish, ranks

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "gloo_script.py"
PREEMPTED = 75
STEP = 45
"""In the middle between two saves by the clock."""


def told_in_a_step(root: Path, who: Collection[int], number: int, *, count: int = 1) -> list[tuple[int, str]]:
    """Start two ranks, tell some of them to end; return exit status and standard error of each."""
    with ranks(SCRIPT, root, of={rank: {"told": STEP} for rank in who}) as processes:
        for rank in who:
            stdout = processes[rank].stdout
            assert stdout is not None
            if stdout.readline() != "waits\n":
                raise AssertionError(processes[rank].communicate(timeout=SECONDS))
        for _ in range(count):
            for rank in who:
                os.kill(processes[rank].pid, number)
        ended: list[tuple[int, str]] = []
        for process in processes:
            _, said = process.communicate(timeout=SECONDS)
            ended.append((process.returncode, said))
        return ended


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """An undisturbed run, and what its ranks have told."""
    root = tmp_path_factory.mktemp("straight") / "run"
    return root, finish(SCRIPT, root)


@pytest.mark.parametrize(
    ("who", "number", "count"),
    [
        ((1,), signal.SIGTERM, 1),
        ((0, 1), signal.SIGTERM, 10),
        pytest.param((0,), signal.SIGTERM, 1, marks=pytest.mark.exactness),
        pytest.param((1,), signal.SIGUSR1, 10, marks=pytest.mark.exactness),
    ],
    ids=["one that is not the first", "all, ten times", "the first", "one, by SIGUSR1, ten times"],
)
def test_a_signal_to_any_rank_saves_the_step_once_and_ends_all(
    who: tuple[int, ...],
    number: signal.Signals,
    count: int,
    straight: tuple[Path, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    ended = told_in_a_step(root, who, number, count=count)
    assert [status for status, _ in ended] == [PREEMPTED] * 2, ended
    for rank, (_, said) in enumerate(ended):
        assert f"{number.name if rank in who else 'another rank'}: step {STEP + 1} is saved" in said
    assert_whole(root)
    assert [step for step in steps_of(root) if step > STEP - 3] == [STEP + 1]
    last = repository(root).history()[-1]
    assert (last.event, last.reasons) == (
        "end",
        [f"preempted by {number.name if 0 in who else 'another rank'}"],
    )
    resumed = finish(SCRIPT, root)
    assert [one.pop("started") for one in resumed] == [STEP + 1] * 2
    assert resumed == [{k: v for k, v in one.items() if k != "started"} for one in straight[1]]
    assert differing(root, straight[0]) == []


@pytest.mark.exactness
def test_a_part_that_is_left_cold_after_a_signal_shows(
    straight: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    root = tmp_path / "run"
    assert [status for status, _ in told_in_a_step(root, (1,), signal.SIGTERM)] == [PREEMPTED] * 2
    ended = finish(SCRIPT, root, of={1: {"cold": "generator"}})
    assert [one["started"] for one in ended] == [STEP + 1] * 2
    assert [ended[rank]["generator"] != straight[1][rank]["generator"] for rank in range(2)] == [False, True]


def test_one_of_two_that_hear_nothing_of_each_other_ends_with_a_checkpoint_of_both(tmp_path: Path) -> None:
    """Not told is the other one: it goes on, and names the rank that is missing at its next save."""
    plain, root = tmp_path / "plain", tmp_path / "run"
    finish_by_hand(plain, 2)
    with Launch() as launch:
        for rank in range(2):
            launch.start(root, rank, 2, told=11 if rank else -1, sync_timeout=10.0)
        assert launch.end(1).status == PREEMPTED
        left = launch.end(0)
    assert (left.status, left.error["error"]) == (3, "RankMissing" if left.error["ranks"] else "SaveFailed")
    assert "ank 1" in left.error["message"]
    assert steps_of(root)[0] == 15
    assert_whole(root)
    resumed = finish_by_hand(root, 2)
    assert [one.start["start"] for one in resumed] == [15, 15]
    assert [results(root, rank) for rank in range(2)] == [results(plain, rank) for rank in range(2)]
