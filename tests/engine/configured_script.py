"""A training that gives no setting in code: `configured_script.py KILL_AT [cold]`, under the file where it is started.

Killed at the top of a step, once what was begun is durable. `cold`: the generator begins anew after the start.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import unbroken

kill_at, cold = int(sys.argv[1]), "cold" in sys.argv
rng, weights = np.random.default_rng(5), np.zeros(64)
run = unbroken.Run()
run.track(rng=rng, weights=weights)
for step in run.steps(60):
    if cold and run.report is not None and step == run.report.step:
        rng.bit_generator.state = np.random.default_rng(5).bit_generator.state
    run.wait()  # so that each interval has its checkpoint
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    weights += rng.normal(size=64) * 0.5**step
print(weights.tobytes().hex())
