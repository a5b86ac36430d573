"""A training over servers that run elsewhere: its weight changes by what the rollouts are rewarded with.

`python training_script.py ROOT URLS STEPS [untracked] [queue|take]`. It prints its weight and what it trained on, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import unbroken
from unbroken.nemo_gym import Gym, Rollout, RolloutQueue

root, urls, total = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
options = sys.argv[4:]
warnings.simplefilter("ignore", unbroken.UntrackedWarning)

gym = Gym(urls, token="a token for tests", sync_timeout=300, patience=300)
queue = RolloutQueue(gym, [{"prompt": i, "weight": 0.25} for i in range(8)], samples=2, ahead=2, epochs=2)
run = unbroken.Run(root, every=1)
if "untracked" not in options:
    run.track(gym=gym)
if "queue" in options:
    run.track(queue=queue)
run.vars.weight = 0.0
run.vars.trained = []


def rows() -> list[dict[str, Any]]:
    return [{"prompt": random.randrange(1000), "weight": run.vars.weight} for _ in range(3)]


def rollouts(step: int) -> list[Rollout]:
    if "queue" in options:
        return [rollout for group in queue.next(2) for rollout in group]
    if "take" in options:
        if step == 0:
            gym.submit([{"prompt": i} for i in range(total)])
        return gym.take(1)
    return gym.collect(rows())


random.seed(1)
for step in run.steps(total):
    run.wait()  # or the next save may be left out, and with it the call to be killed in
    for rollout in rollouts(step):
        assert rollout.reward is not None
        run.vars.weight = (run.vars.weight + rollout.reward / 10) % 1.0
        run.vars.trained.append([rollout.row["prompt"], rollout.reward])
print(json.dumps({"weight": run.vars.weight, "trained": run.vars.trained}))
gym.close()
