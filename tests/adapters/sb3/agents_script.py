"""A training with environments of several agents: `python agents_script.py ROOT OUT KILL COLD`.

KILL: the step of the loop at which the process ends at once, 0 for never. COLD: a place that is not restored, or -.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed

from tests.adapters.sb3.agents import Tag, vector
from tests.adapters.sb3.runner import Killer, leave_cold
from tests.adapters.sb3.trainings import small, weights
from unbroken.sb3 import CheckpointCallback

root, out, kill, cold = sys.argv[1:]
torch.set_num_threads(1)
leave_cold([] if cold == "-" else [cold])
set_random_seed(0)  # SuperSuit's vectors take no seed from SB3
model = PPO("MlpPolicy", vector(Tag()), n_steps=16, batch_size=16, n_epochs=2, **small(seed=None))
ours = CheckpointCallback(5, root, "job")
model.learn(320, callback=[ours, Killer(int(kill), ours)])
digest = hashlib.blake2b(repr(sorted(weights(model).items())).encode())
digest.update(repr((random.random(), np.random.random(), torch.rand(1).item())).encode())  # noqa: NPY002
assert model.env is not None
for _ in range(30):  # what comes next shows the generator of every copy
    digest.update(repr(model.env.step(np.zeros(4, int))[:3]).encode())
assert ours.report is not None
Path(out).write_text(f"{digest.hexdigest()} {ours.report.promises['env_states'].fidelity.value}")
