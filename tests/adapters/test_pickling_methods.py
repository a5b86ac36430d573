"""What `Run.track` makes of an object that has ideas of its own about pickling."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

import unbroken


class Counter:
    def __init__(self):
        self.count, self.cache = 0, 0

    def __getstate__(self):
        sys.exit("__getstate__ was called")

    def __setstate__(self, state):
        sys.exit("__setstate__ was called")


counter = Counter()
run = unbroken.Run(sys.argv[1], every=5, quiet=True)
run.track(counter=counter)
for _ in run.steps(int(sys.argv[2])):
    counter.count += 1
    counter.cache += 2
print(counter.count, counter.cache)
"""


def test_all_attributes_come_back_and_its_methods_of_pickling_are_not_called(tmp_path: Path) -> None:
    for steps, said in ((10, "10 20"), (25, "25 50")):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), str(steps)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
