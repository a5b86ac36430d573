"""One run of the demo: its process, killed at given moments and started again until it is finished."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo import trail

ROOT = Path(__file__).parent.parent
POLL_SECONDS = 0.002
WATCH_SECONDS = 0.05
PATIENCE_SECONDS = 600.0


class LaneFailed(Exception):
    """A training ended otherwise than asked."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: some time after the run has reported `step`, so that training and saving are hit too."""

    step: int
    delay: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A finished run: where its files are, the step at which each kill came, and how long it took."""

    folder: Path
    kills: tuple[int, ...]
    seconds: float

    @property
    def trail(self) -> trail.Trail:
        return trail.read(self.folder / "trail.bin")


def draw_moments(generator: random.Random, *, count: int, first: int, last: int) -> tuple[Moment, ...]:
    """Draw one moment in each of `count` equal parts of the steps from `first` to `last`."""
    width = (last - first) / count
    return tuple(
        Moment(int(first + width * (part + generator.random())), generator.random() * 0.05)
        for part in range(count)
    )


def run_lane(
    script: str,
    task: str,
    folder: Path,
    moments: Sequence[Moment] = (),
    watch: Callable[[int], None] = lambda step: None,
) -> Lane:
    """Run `script` to its end, with SIGKILL at each moment and the same command again.

    `watch` is told the step from time to time.
    """
    folder.mkdir(parents=True)
    begin = time.monotonic()
    kills = tuple(_start_and_kill(script, task, folder, moment, watch) for moment in moments)
    process = _start(script, task, folder)
    try:
        while process.poll() is None:
            watch(trail.last_step(folder / "trail.bin"))
            time.sleep(WATCH_SECONDS)
    finally:
        process.kill()
    if process.wait() != 0:
        raise LaneFailed(_last_words(script, folder))
    return Lane(folder, kills, time.monotonic() - begin)


def _start(script: str, task: str, folder: Path) -> subprocess.Popen[bytes]:
    # One thread: two trainings share two cores, and the low bits of a sum depend on the number of threads.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("UNBROKEN_ROOT", None)
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", script, task],
            cwd=folder,  # the same relative paths in every run: paths are part of the state too
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _start_and_kill(
    script: str, task: str, folder: Path, moment: Moment, watch: Callable[[int], None]
) -> int:
    process = _start(script, task, folder)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while (step := trail.last_step(folder / "trail.bin")) < moment.step:
            watch(step)
            if process.poll() is not None:
                raise LaneFailed(f"It ended before step {moment.step}. {_last_words(script, folder)}")
            if time.monotonic() > deadline:
                raise LaneFailed(f"It did not reach step {moment.step} in {PATIENCE_SECONDS:.0f} s.")
            time.sleep(POLL_SECONDS)
        time.sleep(moment.delay)
    finally:
        process.kill()
        process.wait()
    return trail.last_step(folder / "trail.bin")


def _last_words(script: str, folder: Path) -> str:
    lines = (folder / "log.txt").read_text(errors="replace").splitlines()[-15:]
    return f"The last lines of {script}:\n" + "\n".join(f"  {line}" for line in lines)
