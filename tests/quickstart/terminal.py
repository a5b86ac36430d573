"""A person at a terminal: starts a quickstart, kills everything that it has started, starts it again.

Not promised: that a kill hits the same step twice. It comes once enough checkpoints are on the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.adapters.rays import apart
from unbroken.proving.supervisor import descendants, kill

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "quickstart"
SECONDS = 900.0
LOOK_S = 0.01
LINE = re.compile(
    r"(?:\([^)]*pid=\d+[^)]*\) ?)?(unbroken: .*|.*\b(?:weights|scores) [0-9a-f]{12,16}|[0-9a-f]{64} .*)$"
)
"""A line that belongs to Unbroken or to the script; Ray puts the process before it."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Quickstart:
    """One of the pages: its file, what a person types, and after how many checkpoints to kill."""

    name: str
    file: str
    command: str
    needs: str
    checkpoints: int = 4
    look: str = ""
    """What is typed once it has ended, where the framework says nothing of what it has come to."""

    @property
    def page(self) -> Path:
        return ROOT / "docs" / "quickstart" / f"{self.name}.md"


ZOO = "python -m rl_zoo3.train --algo ppo --env CartPole-v1 --conf-file rl_zoo.yml --seed 0 --device cpu"
LOOK = "unbroken export runs/rl-zoo --to policy.npz && sha256sum policy.npz"
QUICKSTARTS = (
    Quickstart("sb3", "train_sb3.py", "python train_sb3.py", "stable_baselines3"),
    Quickstart("rl-zoo", "rl_zoo.yml", ZOO, "rl_zoo3", look=LOOK),
    Quickstart("loop", "train_loop.py", "python train_loop.py", "torch", 5),
    Quickstart("lightning", "train_lightning.py", "python train_lightning.py", "lightning"),
    Quickstart("fsdp", "train_fsdp.py", "torchrun --standalone --nproc-per-node 2 train_fsdp.py", "torch"),
    Quickstart("rllib", "train_rllib.py", "python train_rllib.py", "ray"),
    Quickstart("ray-train", "train_ray_train.py", "python train_ray_train.py", "ray"),
    Quickstart("tune", "train_tune.py", "python train_tune.py", "ray", 12),
    Quickstart("nemo-gym", "train_nemo_gym.py", "python train_nemo_gym.py", "nemo_gym", 5),
)
WORDS = {"python": "", "unbroken": "-m unbroken", "torchrun": "-m torch.distributed.run"}


class Terminal:
    """A directory of a user, with the file of a quickstart in it."""

    def __init__(self, quickstart: Quickstart, folder: Path) -> None:
        self.quickstart = quickstart
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name, words in WORDS.items():
            file = folder / "bin" / name
            file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W ignore {words} "$@"\n')
            file.chmod(0o700)
        shutil.copy(FILES / quickstart.file, folder)
        (folder / ".venv-gym").symlink_to(sys.prefix)

    def finish(self) -> list[str]:
        """Start it and wait for its end; return what it and Unbroken have said."""
        process = self._start()
        try:
            status = process.wait(SECONDS)
        finally:
            kill_all(process)
        assert status == 0, self._said()
        said = self.told()
        if self.quickstart.look:
            looked = subprocess.run(
                self.quickstart.look, shell=True, cwd=self.folder, env=self._environment(), check=True,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            said += [f"$ {self.quickstart.look}", looked.stdout.splitlines()[-1]]
        return said

    def kill_in_the_middle(self) -> list[str]:
        """Start it, and kill all its processes once enough checkpoints are there."""
        process = self._start()
        until = time.monotonic() + SECONDS
        try:
            while self.checkpoints() < self.quickstart.checkpoints:
                assert process.poll() is None, self._said()
                assert time.monotonic() < until, self._said()
                time.sleep(LOOK_S)
        finally:
            kill_all(process)
        return self.told()

    def checkpoints(self) -> int:
        """Return how many checkpoints were committed in this directory and are still there."""
        return sum(1 for _ in self.folder.glob("runs/*/commits/*.json"))

    def told(self) -> list[str]:
        """Return the lines of the start before that are Unbroken's or the script's."""
        found = (LINE.fullmatch(line) for line in self._said().splitlines())
        return [line[1] for line in found if line is not None]

    def _said(self) -> str:
        return COLOUR.sub("", (self.folder / "said").read_text(errors="replace"))

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "said").open("wb") as said:
            return subprocess.Popen(
                self.quickstart.command,
                shell=True,
                cwd=self.folder,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env=self._environment(),
            )

    def _environment(self) -> dict[str, str]:
        return {
            **apart(),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "TQDM_DISABLE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and all below it with SIGKILL, the root first: nothing is started anew in between."""
    below = list(descendants(process.pid))
    process.send_signal(signal.SIGKILL)
    for pid, born in below:
        kill(pid, born)
    process.wait()
    while any(kill(pid, born) for pid, born in below):
        time.sleep(LOOK_S)
