"""One Ray for all runs of a test session, and interpreters that run trainings as drivers in it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.adapters.rays import cluster_of_its_own, said_in

HERE = Path(__file__).parents[3]

_KEEPER = """
import sys, ray
started = ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
print(started.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


class Cluster:
    """A Ray of our own. Closing it ends every process that it has started."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        environment = self._stack.enter_context(cluster_of_its_own())
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # The actors' processes get it from here: they load the functions of tests by name.
            env={**environment, "PYTHONPATH": str(HERE)},
            text=True,
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        assert address, "Ray did not start"
        self.environment = {**environment, "RAY_ADDRESS": address}
        """What a driver needs to come to this cluster."""

    def said(self) -> str:
        """Return what all workers have written by now."""
        return said_in(self.environment)

    def close(self) -> None:
        self._process.communicate()
        self._stack.close()


class Runner:
    """An interpreter that runs trainings in children of its own. See `runner`."""

    def __init__(self, cluster: Cluster, hash_seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.adapters.rllib.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=HERE,
            env={**cluster.environment, "PYTHONHASHSEED": str(hash_seed)},
            text=True,
        )

    def run(self, **order: Any) -> int:
        """Carry out an order and return the exit status; a negative one is a signal."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return int(stdout.readline())

    def close(self) -> None:
        self._process.communicate()
