"""A loop over a vector of environments, killed where an episode has just ended, ends as if never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unbroken.repo.process import identify

SCRIPT = Path(__file__).parent / "vectors_script.py"


def start(root: Path, out: Path, kind: str, kill: str = "-", cold: str = "-") -> int:
    # Into files: workers keep a pipe open for as long as they live.
    with out.with_suffix(".log").open("w") as log:
        return subprocess.run(
            [sys.executable, "-W", "ignore", str(SCRIPT), str(root), str(out), kind, kill, cold],
            stdout=log, stderr=log, check=False,
        ).returncode  # fmt: skip


def end_of(root: Path, kind: str, cold: str = "-") -> str:
    out = root.with_name(f"end-{cold}")
    assert start(root, out, kind, cold=cold) == 0, out.with_suffix(".log").read_text()
    return out.read_text()


@pytest.mark.parametrize(("kind", "colds"), [("async", ("envs", "loop")), ("sync", ("envs",))])
def test_a_killed_loop_ends_as_if_never_stopped(kind: str, colds: tuple[str, ...], tmp_path: Path) -> None:
    undisturbed = end_of(tmp_path / "undisturbed", kind)
    root, kept = tmp_path / "killed", tmp_path / "kept"
    assert start(root, tmp_path / "where", kind, kill="kill") == -signal.SIGKILL
    step, _, pids = (tmp_path / "where").read_text().partition(" ")
    assert int(step) < 60, "it was over before it was killed"
    shutil.copytree(root, kept)
    assert end_of(root, kind) == undisturbed
    for cold in colds:
        shutil.rmtree(root)  # a run is known by its place: the copy is resumed at the same one
        shutil.copytree(kept, root)
        assert end_of(root, kind, cold) != undisturbed
    assert_gone(json.loads(pids))


def assert_gone(pids: list[int]) -> None:
    """The pipe that a worker listens to is closed, once the one after it has ended."""
    end = time.monotonic() + 240
    while any(identify(pid).start for pid in pids):
        assert time.monotonic() < end
        os.sched_yield()
