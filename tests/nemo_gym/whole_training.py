"""A training that brings its servers itself, as one program: `python whole_training.py DIRECTORY [long] [resume=STEP]`.

Its weight changes by rewards, the next rows by its weight. It prints what it came to, and the digests of the sessions it trained on.
With `long`, a rollout that is submitted in the first step is under way at several checkpoints, and is taken in the last.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import unbroken
from tests.nemo_gym.stack import Stack, counter
from unbroken.nemo_gym import Gym, Rollout

ADDS = (1, 1, 4, 2)
"""How many numbers a rollout adds, by step: only in the third is the model asked for a turn 3 in the middle."""
LONG = 12
DELAY = 0.1


def main(directory: Path, options: list[str]) -> dict[str, Any]:
    warnings.simplefilter("ignore", unbroken.UntrackedWarning)
    is_long = "long" in options
    steps = [int(option.partition("=")[2]) for option in options if option.startswith("resume=")]
    random.seed(1)
    with (
        Stack(directory, delay=DELAY if is_long else 0.0) as stack,
        Gym(stack.addresses, agent="agent") as gym,
    ):
        run = unbroken.Run(
            root=directory / "runs", job="train", every=1, keep_last=9, resume=steps[0] if steps else "auto"
        )
        run.track(gym=gym)
        run.vars.weight = 0
        run.vars.trained = []

        def train_on(rollouts: list[Rollout]) -> None:
            digests = {s.rollout: s.digest for s in gym.sessions()["res"] if s.status == "open"}
            for rollout in rollouts:
                assert rollout.reward is not None
                run.vars.weight = (3 * run.vars.weight + int(rollout.reward) + 1) % 101
                run.vars.trained.append([rollout.id, rollout.reward, digests[rollout.id]])

        for step in run.steps(len(ADDS)):
            run.wait()  # so that each step has its checkpoint, and a kill leaves it, however slow the disk is
            if step == 0 and is_long:
                gym.submit([counter(*range(LONG), start=1)])
                stack.await_turn(1)
            rows = [row(run.vars.weight, ADDS[step]) for _ in range(2)]
            train_on(gym.collect(rows))
            if step == len(ADDS) - 1 and is_long:
                train_on(gym.take(1))
        run.close()
        return {"weight": run.vars.weight, "trained": run.vars.trained}


def row(weight: int, adds: int) -> dict[str, Any]:
    """Return a row that is rewarded or not, by chance."""
    made = counter(*(random.randrange(9) for _ in range(adds)), start=weight)
    made["expected_count"] += random.randrange(2)
    return made


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
