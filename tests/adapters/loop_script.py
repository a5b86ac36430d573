"""Runs an example of a hand-written loop, kills it at a step, or makes one part cold after the restore.

`python loop_script.py KILL_AT COLD ARGS...`, with the example's name in `EXAMPLE` (loop_dqn); KILL_AT -1 kills nothing, COLD - leaves nothing cold. `850,settled`
lets every save finish before the next step, so that what is resumed does not depend on the disk.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import unbroken

kill_at, settled = int(sys.argv[1].partition(",")[0]), sys.argv[1].endswith(",settled")
cold = sys.argv[2]
del sys.argv[1:3]
steps = unbroken.Run.steps


def chill(tracked: dict[str, Any]) -> None:
    """Bring one part to the state in which a script that does not save it would find it."""
    if cold == "buffer":
        tracked["buffer"].pos, tracked["buffer"].full = 0, False
    elif cold == "priorities":
        buffer = tracked["buffer"]
        buffer.update(np.arange(len(buffer)), np.ones(len(buffer)))
    elif cold == "trees":
        tracked["buffer"].trees.set(np.arange(len(tracked["buffer"])), np.ones(len(tracked["buffer"])))
    elif cold == "optimizer":
        tracked["optimizer"].state.clear()
    elif cold == "generators":
        random.seed(1)


def deadly_steps(self: unbroken.Run, total: int) -> Iterator[int]:
    for step in steps(self, total):
        if self.report is not None and self.report.restored and step == self.report.step:
            chill(self._tracked.objects)
        if settled:
            self.wait()
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        yield step


# The example does not use numpy's global generator; seeded from the system it would differ all the same.
np.random.seed(1)  # noqa: NPY002
unbroken.Run.steps = deadly_steps  # type: ignore[method-assign]
example = Path(__file__).parents[2] / "examples" / f"{os.environ.get('EXAMPLE', 'loop_dqn')}.py"
runpy.run_path(str(example), run_name="__main__")
