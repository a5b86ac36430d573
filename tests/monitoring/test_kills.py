"""A monitored training in a process of its own is killed, and started again: what its textfile says of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.training import Training, source_of
from tests.monitoring.prometheus import PATIENCE, samples
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.observer import Nobody
from unbroken.engine.settings import Settings
from unbroken.engine.world import World

PROJECT = Path(__file__).parents[2]


class Trainings:
    """Starts trainings that write one textfile."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.textfile = folder, folder / "run.prom"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "UNBROKEN_MONITORING": f"textfile={self.textfile}"}
        script = Path(__file__).with_name("healthy.py")
        command = [sys.executable, os.fspath(script), os.fspath(self.folder)]
        self.started.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=PROJECT))
        return self.started[-1]

    def told(self) -> dict[str, float]:
        text = self.textfile.read_text() if self.textfile.exists() else ""
        return samples(text.replace('job="healthy"', 'job="run"'))

    def until(self, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Wait until the file says something, and return all that it says then."""
        end = time.monotonic() + PATIENCE
        while not holds(said := self.told()):
            assert time.monotonic() < end, said
            assert self.started[-1].poll() is None
            time.sleep(0.05)
        return said


@pytest.fixture
def trainings(tmp_path: Path) -> Iterator[Trainings]:
    trainings = Trainings(tmp_path)
    yield trainings
    for process in trainings.started:
        process.kill()
        process.communicate()


def test_after_a_kill_it_still_trains_and_the_next_start_counts_on(trainings: Trainings) -> None:
    first = trainings.start()
    trainings.until(lambda said: said.get("unbroken_saves_total", 0) >= 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    left = trainings.told()
    assert left["unbroken_training"] == 1
    second = trainings.start()
    said = trainings.until(
        lambda said: (
            said["unbroken_recovery_tier"] == 1
            and said["unbroken_saves_total"] > left["unbroken_saves_total"]
        )
    )
    starts = {name: number for name, number in said.items() if name.startswith("unbroken_starts{")}
    assert sum('fault="soft"' in name and 'tier="newest"' in name for name in starts) == 1
    assert said["recovery_success_rate"] == said["state_consistency_score"] == 1
    second.communicate()  # its input ends
    assert second.returncode == 0
    assert trainings.told()["unbroken_training"] == 0


def test_of_several_ranks_only_the_first_tells(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, job="run", every=10, monitoring=Monitoring(port=0))
    ranks = [
        CheckpointEngine(source_of(Training()), settings, world=World(rank=rank, size=2), environment={})
        for rank in (0, 1)
    ]
    assert [isinstance(engine._observer, Nobody) for engine in ranks] == [False, True]
