"""A training of a cluster's job for tests: it waits in its tenth step until it is told to end, if it is told to wait.

`python waiting.py OUT READY`: READY is a named pipe, opened once the training waits; with `-` it does not wait.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import unbroken

out, ready = sys.argv[1:]
total = np.zeros(2)
generator = np.random.default_rng(3)
run = unbroken.Run("runs/job", every=4)
run.track(total=total, generator=generator)
for step in run.steps(20):
    if step == 10 and ready != "-":
        came, comes = os.pipe()
        os.set_blocking(comes, False)
        signal.set_wakeup_fd(comes)
        Path(ready).write_text("waits")
        os.read(came, 1)
    total += generator.random(2)
Path(out).write_text(total.tobytes().hex())
