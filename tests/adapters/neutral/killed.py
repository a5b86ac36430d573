"""Replaces an export again and again, and dies by SIGKILL at each line of the way in turn.

Prints what stood under the name after each death: the content of the export that can be read there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from unbroken import neutral
from unbroken.adapters.neutral import directory
from unbroken.format.neutral import Column, Neutral, Replay, Source
from unbroken.store import exchange

FILE = "replay/rows/obs.npy"
WAY = {(directory.__file__, "write"), (exchange.__file__, "take_place"), (exchange.__file__, "exchange")}


def contents(value: int) -> directory.Contents:
    column = Column(name="obs", file=FILE, dtype="int64", shape=[1])
    rows = Replay(name="rows", place="rows", rows=1, columns=[column])
    return directory.Contents(
        Neutral(source=Source(run="run", step=value), replay=[rows]),
        columns={FILE: directory.Turned(np.full(1, value), 0, 1)},
    )


class Death:
    """Comes at the line of the way that is the n-th to be run."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if (frame.f_code.co_filename, frame.f_code.co_name) not in WAY:
            return None
        if event in ("line", "return"):
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def main() -> None:
    place = Path(sys.argv[1])
    directory.write(contents(0), place)
    status = -1
    for line in range(1000):
        child = os.fork()
        if not child:
            sys.settrace(Death(line))
            directory.write(contents(line + 1), place, force=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found = neutral.load(place)
        print(found.step, found.replay["rows"]["obs"][0])
        if status == 0:
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    main()
