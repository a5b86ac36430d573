"""Starts trainings in children of another interpreter, and compares what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare

HERE = Path(__file__).parents[3]


class Runner:
    """Another interpreter that runs trainings in children of its own."""

    def __init__(self, hash_seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.adapters.lightning.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=HERE,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def run(self, **order: Any) -> Any:
        """Return the exit status; of several `ranks` a list."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def differences(one: Path, other: Path) -> list[str]:
    states = []
    for root in (one, other):
        repository = Repository.open(root, "job")
        commit = repository.commits()[0]
        assert commit.position == "end"
        states.append(repository.load(commit))
    return [str(d) for d in without_clocks(compare(*states), *states)]
