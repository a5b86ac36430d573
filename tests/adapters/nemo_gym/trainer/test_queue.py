"""Prompts in their order, each trained on once per epoch, over kills at any point."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unbroken
from unbroken.errors import ConfigError, StateMismatch
from unbroken.nemo_gym import Gym, RolloutQueue

from .stand_in import TOKEN, Crash, Reply, Stack
from .training import Training, finish, kill_at

PROMPTS = [{"prompt": i, "weight": 0.25} for i in range(8)]


@pytest.fixture
def gym(stack: Stack) -> Iterator[Gym]:
    with Gym(stack.urls, token=TOKEN, sync_timeout=300, patience=300) as found:
        yield found


def prompts(groups: list[list[Any]]) -> list[int]:
    return [group[0].row["prompt"] for group in groups]


def test_each_epoch_has_each_prompt_once_in_an_order_of_its_own(gym: Gym) -> None:
    queue = RolloutQueue(gym, PROMPTS, samples=2, ahead=1, epochs=2)
    groups = [group for batch in queue.batches(3) for group in batch]
    first, second = prompts(groups)[:8], prompts(groups)[8:]
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert {len(group) for group in groups} == {2}
    assert all(len({r.row["prompt"] for r in group}) == 1 for group in groups)
    again = RolloutQueue(gym, PROMPTS, samples=1, epochs=2)
    assert prompts([group for batch in again.batches(5) for group in batch]) == first + second


def test_another_seed_is_another_order_and_none_is_that_of_the_rows(gym: Gym) -> None:
    assert prompts(RolloutQueue(gym, PROMPTS, seed=None).next(8)) == list(range(8))
    assert prompts(RolloutQueue(gym, PROMPTS, seed=1).next(8)) != prompts(RolloutQueue(gym, PROMPTS).next(8))


def test_no_more_groups_are_under_way_than_asked_for(stack: Stack, gym: Gym) -> None:
    queue = RolloutQueue(gym, PROMPTS, samples=2, ahead=3)
    queue.next(1)
    assert len(gym.coordinator.ledger.ids()) == 2 * 4
    assert queue.left == 7
    assert queue.epoch == 0


def test_the_end_of_the_data_is_said(gym: Gym) -> None:
    """G6: a loop that asks for more than there is stops with an error; one over `batches` ends."""
    queue = RolloutQueue(gym, PROMPTS[:3])
    assert [len(batch) for batch in queue.batches(2)] == [2, 1]
    assert queue.left == 0
    with pytest.raises(ConfigError, match=r"Nothing is left: all 3 groups.*Raise epochs"):
        queue.next()


def test_without_an_end_there_is_always_more(gym: Gym) -> None:
    queue = RolloutQueue(gym, PROMPTS[:2], epochs=None)
    assert queue.left is None
    assert Counter(prompts(queue.next(7))) in ({0: 4, 1: 3}, {0: 3, 1: 4})


@pytest.mark.parametrize(
    "options", [{"rows": []}, {"samples": 0}, {"ahead": -1}, {"epochs": 0}, {"rows": [{"a": object()}]}]
)
def test_options_that_cannot_be_used(gym: Gym, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RolloutQueue(gym, options.pop("rows", PROMPTS), **options)


@pytest.mark.parametrize("stop", [0, 3, 4, 5, 8])
def test_wherever_it_is_saved_the_number_of_updates_is_that_of_an_undisturbed_run(
    stack: Stack, tmp_path: Path, stop: int
) -> None:
    """G6: 4 prompts, 2 epochs; saved inside an epoch, after its last group, and after the last of all. The end of the data
    is noticed before that save and after it."""
    updates = 0

    def start(*, until: int) -> None:
        nonlocal updates
        training = Training(tmp_path / "run", stack)
        queue = RolloutQueue(training.gym, PROMPTS[:4], epochs=2)
        training.run.track(queue=queue)
        done = training.begin()
        assert done == 8 - (queue.left or 0)
        while done < until and queue.left:
            updates += len(queue.next())
            done = training.step()
        if until > 8:
            assert list(queue.batches()) == []
        training.leave()

    start(until=stop)
    start(until=100)
    assert updates == 8
    start(until=100)  # and once more there is nothing left
    assert updates == 8


# Killed for real.


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    stack = Stack()
    found, _ = finish(tmp_path_factory.mktemp("undisturbed") / "run", stack, 8, "queue")
    stack.stop()
    assert Counter(prompt for prompt, _ in found["trained"]) == dict.fromkeys(range(8), 4)
    return found


@pytest.mark.parametrize("kept", [True, False], ids=["agents keep theirs", "agents have lost theirs"])
def test_over_kills_at_any_point_each_prompt_is_trained_on_once_per_epoch(
    undisturbed: dict[str, Any], stack: Stack, tmp_path: Path, kept: bool
) -> None:
    """G1: 8 prompts, 2 epochs, 2 groups ahead, killed at calls of the model that fall anywhere; with what agents hold of
    rollouts in flight, and without."""
    for call in (7, 23, 42):
        kill_at(call, tmp_path / "run", stack, 8, "queue")
        if not kept:
            stack.agent.kept.clear()
    found, said = finish(tmp_path / "run", stack, 8, "queue")
    assert "goes on at step" in said
    assert found == undisturbed


def test_finished_groups_come_back_and_only_what_is_missing_is_sent_again(
    stack: Stack, tmp_path: Path
) -> None:
    """G2, G3, G5, G13: of four groups one is trained on, one is done, one is half done and one has only begun. What is sent
    after a restart is exactly the three rollouts that are missing, and not before they are asked for."""
    missing, go_on = {"2-1", "3-0", "3-1"}, threading.Event()

    def instead(rollout: str, attempt: int) -> Reply | None:
        if rollout in missing and attempt == 0:
            go_on.wait(600)
            raise Crash
        return None

    stack.agent.instead = instead
    training = Training(tmp_path / "run", stack)
    queue = RolloutQueue(training.gym, PROMPTS, samples=2, ahead=3, seed=None)
    training.run.track(queue=queue)
    training.begin()
    assert prompts(queue.next()) == [0]
    ledger, changed = training.gym.coordinator.ledger, training.gym.coordinator.changed
    with changed:
        assert changed.wait_for(lambda: len(ledger.finished("queue")) == 3, 300)
    training.step()
    training.leave()
    go_on.set()

    stack.agent.runs.clear()
    calls = stack.model.calls.total()
    again = Training(tmp_path / "run", stack)
    queue = RolloutQueue(again.gym, PROMPTS, samples=2, ahead=0, seed=None)
    again.run.track(queue=queue)
    assert again.begin() == 1
    assert stack.agent.runs == []
    assert stack.model.calls.total() == calls
    groups = queue.next(3)
    assert prompts(groups) == [1, 2, 3]
    assert sorted(stack.agent.runs) == [(rollout, 1) for rollout in sorted(missing)]
    assert [[r.attempt for r in group] for group in groups] == [[0, 0], [0, 1], [1, 1]]
    assert stack.model.calls.total() == calls + 6
    again.leave()


def test_other_rows_are_refused(stack: Stack, tmp_path: Path) -> None:
    def start(rows: list[dict[str, Any]], **options: Any) -> None:
        with Gym(stack.urls, token=TOKEN) as gym:
            queue = RolloutQueue(gym, rows, **options)
            run = unbroken.Run(tmp_path / "run", every=1, quiet=True)
            run.track(gym=gym, queue=queue)
            for step in run.steps(100):
                queue.next()
                if step == 1:
                    run.stop()

    start(PROMPTS)
    with pytest.raises(StateMismatch, match="other rows"):
        start(PROMPTS[:7])
    with pytest.raises(StateMismatch, match="other seed"):
        start(PROMPTS, seed=3)
    with pytest.raises(StateMismatch, match="other samples"):
        start(PROMPTS, samples=3)


def test_a_queue_without_its_gym_refuses_to_go_on(stack: Stack, gym: Gym) -> None:
    queue = RolloutQueue(gym, PROMPTS, ahead=2)
    queue.next()
    with Gym(stack.urls, token=TOKEN) as other:
        again = RolloutQueue(other, PROMPTS, ahead=2)
        again.restore(queue.capture())
        with pytest.raises(ConfigError, match="Track both"):
            again.next()
