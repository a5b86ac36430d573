"""Starts the ranks of a run as processes of their own, and looks at what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unbroken.repo.repository import Repository
from unbroken.state.diff import LeafDifference, compare

SCRIPT = Path(__file__).parent / "rank_script.py"
LAUNCHER = frozenset({"RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "UNBROKEN_ROOT"})
SECONDS = 180.0
"""So long a test waits for a rank that should have come to its end."""


@dataclass(frozen=True)
class Ended:
    """How a rank ended, and what it has told."""

    status: int
    told: list[dict[str, Any]]
    stderr: str

    @property
    def start(self) -> dict[str, Any]:
        """What it told of its first loop."""
        return next(line for line in self.told if "start" in line)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [line for line in self.told if "error" in line]

    @property
    def error(self) -> dict[str, Any]:
        """Its only error."""
        assert len(self.errors) == 1, (self.told, self.stderr)
        return self.errors[0]


class Launch:
    """The ranks of one start of a run; a context manager that leaves no process behind."""

    def __init__(self) -> None:
        self._ranks: dict[str, subprocess.Popen[str]] = {}
        self._read: dict[str, list[dict[str, Any]]] = {}

    def start(
        self, root: Path | str, rank: int, size: int, *, name: str = "", environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        """Start one rank, with these options of the script; `name` where two claim to be the same one."""
        plain = {key: value for key, value in os.environ.items() if key not in LAUNCHER}
        self._ranks[name or str(rank)] = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(root), json.dumps(options)],
            env={
                **plain, "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1", **(environment or {})
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def pid(self, name: object) -> int:
        return self._ranks[str(name)].pid

    def stopped(self, name: object) -> None:
        """Wait until a rank has stopped itself."""
        found = os.waitid(os.P_PID, self.pid(name), os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert found is not None
        assert found.si_code == os.CLD_STOPPED, self.end(name)

    def line_of(self, name: object, key: str) -> dict[str, Any]:
        """Wait until a rank has told something under this key, and return that."""
        stdout = self._ranks[str(name)].stdout
        assert stdout is not None
        for line in stdout:
            told: dict[str, Any] = json.loads(line)
            self._read.setdefault(str(name), []).append(told)
            if key in told:
                return told
        raise AssertionError(self.end(name))

    def go_on(self, name: object) -> None:
        os.kill(self.pid(name), signal.SIGCONT)

    def end(self, name: object) -> Ended:
        """Wait until a rank ends, and return how."""
        process = self._ranks[str(name)]
        stdout, stderr = process.communicate(timeout=SECONDS)
        told = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
        return Ended(process.returncode, [*self._read.get(str(name), []), *told], stderr)

    def kill(self, name: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid(name), signal.SIGKILL)

    def __enter__(self) -> Launch:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._ranks.values():
            if process.poll() is None:
                process.kill()
            process.communicate()


def go(
    root: Path | str, size: int, *, of: Mapping[int, Mapping[str, Any]] | None = None, **options: Any
) -> list[Ended]:
    """Start all ranks, `of` giving some of them options of their own; return how they ended.

    Where one is to die the others are killed then, as a launcher does.
    """
    own = of or {}
    with Launch() as launch:
        for rank in range(size):
            launch.start(root, rank, size, **{**options, **own.get(rank, {})})
        dying = [rank for rank in own if own[rank].get("die", -1) >= 0]
        ended = {rank: launch.end(rank) for rank in dying}
        for rank in range(size):
            if dying and rank not in ended:
                launch.kill(rank)
        ended.update({rank: launch.end(rank) for rank in range(size) if rank not in ended})
    return [ended[rank] for rank in range(size)]


def finish(root: Path | str, size: int, **options: Any) -> list[Ended]:
    """Start all ranks; each must come to the end of its training."""
    ended = go(root, size, **options)
    assert [one.status for one in ended] == [0] * size, [(one.told, one.stderr) for one in ended]
    return ended


def repository(root: Path | str) -> Repository:
    return Repository.open(root, str(root).rstrip("/").rpartition("/")[2])


def steps_of(root: Path | str) -> list[int]:
    return [commit.step for commit in repository(root).commits()]


def assert_whole(root: Path | str) -> None:
    """Every checkpoint that a reader sees is whole."""
    run = repository(root)
    assert run.commits()
    assert [fault for commit in run.commits() for fault in run.verify(commit)] == []
    assert run.broken() == []


def differing(root: Path, other: Path) -> list[LeafDifference]:
    """Return the leaves in which the newest checkpoints of two runs differ, of all ranks."""
    one, two = repository(root), repository(other)
    return compare(one.load(one.commits()[0]), two.load(two.commits()[0]))


def results(root: Path, rank: int) -> dict[str, bytes]:
    """Return the bytes of what a rank held at its end, its next draws included."""
    with np.load(f"{root}.{rank}.npz") as found:
        return {name: found[name].tobytes() for name in found.files}
