"""Servers are killed one after the other while a trainer collects and saves: it notices nothing, and neither do its rewards."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.nemo_gym.episodes import EPISODES
from tests.nemo_gym.kills import compared, outputs
from tests.nemo_gym.stack import MODEL, PATIENCE, Stack
from unbroken import Every, Run
from unbroken.nemo_gym import Gym

ROWS = 8
STEPS = 3
KILLS = 12


@pytest.mark.exactness
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["counter", "workplace", "tetris", "code"])
def test_a_storm(tmp_path: Path, name: str, seed: int) -> None:
    episode = EPISODES[name]
    over = threading.Event()
    killed: Counter[str] = Counter()
    failures: list[BaseException] = []
    with Stack(tmp_path, delay=0.02, **episode.stack) as stack:
        undisturbed = compared(stack.run(dict(episode.row)))
        before = len(stack.model_calls())

        def storm() -> None:
            chance = random.Random(seed)
            try:
                while not over.is_set() and killed.total() < KILLS:
                    wanted = len(stack.model_calls()) + chance.randrange(1, 8)
                    while not over.is_set() and len(stack.model_calls()) < wanted:
                        over.wait(0.005)
                    names = chance.choice([("res",), ("agent",), (MODEL,), ("res", "agent"), ("all",)])
                    stack.kill(*names)
                    stack.restart(*names)
                    killed.update(names)
            except BaseException as error:  # noqa: BLE001 - raised below
                failures.append(error)

        thread = threading.Thread(target=storm)
        with Gym(stack.addresses, agent="agent", sync_timeout=PATIENCE, max_attempts=99) as gym:
            run = Run(root=tmp_path / "runs", job="train", every=Every(steps=1), quiet=True)
            run.track(gym=gym)
            for step in run.steps(STEPS):
                if step == 0:
                    thread.start()
                rollouts = gym.collect([episode.row] * ROWS)
                for rollout in rollouts:
                    assert rollout.outcome == "completed", rollout.error
                    assert rollout.response is not None
                    assert rollout.response["response"] == undisturbed["response"], outputs(rollout.response)
                    assert rollout.reward == undisturbed["reward"]
                if step == STEPS - 1:
                    over.set()
                    thread.join(PATIENCE)
            run.close()
        assert not failures, failures
        regenerated = len(stack.model_calls()) - before - ROWS * STEPS * episode.turns
        most = ROWS * (killed["agent"] + killed[MODEL] + killed["all"])
        assert 0 <= regenerated <= most, killed
        print(name, seed, dict(killed), "model calls generated twice:", regenerated)
