"""Runs a script that dies at a step, or goes on with its generators left cold.

`python mortal.py SCRIPT KILL_AT COLD ARGS…`: with KILL_AT, it ends by SIGKILL once it has reached that step and a
checkpoint after the first is on the disk; -1 kills nothing. With `generators` as COLD, the global generators of a
process that goes on are those of a new one; with `NAME.ATTRIBUTE`, that container of a tracked object is emptied; with
`capturer`, what registered capturers would bring back stays as it is. `-` leaves nothing cold.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import time
from typing import Any

from unbroken.engine import engine
from unbroken.engine.progress import Progress

PATIENCE = 300.0


class Deadly(Progress):
    """Ends the process at a step; a checkpoint of a later step than the first is there by then."""

    kill_at = -1

    __slots__ = ()

    def step(self, step: int) -> None:
        super().step(step)
        if not 0 <= self.kill_at <= step:
            return
        # The writer may be behind: a program that ended before it would not have been killed.
        deadline = time.monotonic() + PATIENCE
        while not self._committed and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._committed:
            os.kill(os.getpid(), signal.SIGKILL)


def chill() -> None:
    """Let every global generator begin anew, as one that was not saved would."""
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)


def run(script: str, *, kill_at: int, cold: str, arguments: list[str]) -> None:
    """Run a script in this process, as `python SCRIPT ARGUMENTS` does."""
    chill()  # two undisturbed runs are equal only where what a script does not seed begins alike
    Deadly.kill_at = kill_at
    engine.Progress = Deadly  # type: ignore[attr-defined]
    if cold == "generators":
        resume = engine.CheckpointEngine.resume

        def cooled(self: engine.CheckpointEngine, **options: Any) -> Any:
            report = resume(self, **options)
            if report.restored:
                chill()
            return report

        engine.CheckpointEngine.resume = cooled  # type: ignore[method-assign]
    elif cold == "capturer":
        from unbroken.capture.registry import RegisteredCaptor

        os.environ["UNBROKEN_VALIDATE"] = "0"  # which would find it
        RegisteredCaptor._bring_back = lambda *_: None  # type: ignore[method-assign]
    elif "." in cold:
        from unbroken.adapters.loop import Run

        name, _, attribute = cold.partition(".")
        begin = Run._begin

        def emptied(self: Run, *given: Any) -> int:
            step = begin(self, *given)
            if self.report is not None and self.report.restored:
                getattr(self._tracked.objects[name], attribute).clear()
            return step

        Run._begin = emptied  # type: ignore[method-assign,assignment]
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1], kill_at=int(sys.argv[2]), cold=sys.argv[3], arguments=sys.argv[4:])
