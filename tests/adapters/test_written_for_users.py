"""The adapter and the capturer that the documentation shows: each is killed, and goes on as if nothing had happened.

U is undisturbed, R killed by SIGKILL and started again, C started again with one part left cold. Each start is a process of its own,
with another hash seed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unbroken
from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
MORTAL = ROOT / "tests" / "quickstart" / "mortal.py"
PAGES = {"adapter": "adapters.md", "capturer": "capturers.md"}
JOBS = {"adapter": "minilearn", "capturer": "swing"}


def start(example: str, folder: Path, *, kill_at: int = -1, cold: str = "-", expect: int = 0) -> str:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(MORTAL), str(ROOT / "examples" / example / "train.py"), str(kill_at), cold],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(abs(kill_at))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    return done.stderr + done.stdout


def last_line(said: str) -> str:
    return said.splitlines()[-1]


def end_of(folder: Path, example: str) -> Snapshot:
    repository = Repository.open(folder / "runs", JOBS[example])
    commit = repository.commits()[0]
    assert commit.position == "end"
    return repository.load(commit)


@pytest.mark.parametrize(
    ("example", "kill_at", "cold"),
    [("adapter", 1_710, "optimizer.speeds"), ("capturer", 1_330, "capturer")],
)
def test_killed_and_started_again_it_ends_as_if_it_had_never_stopped(
    example: str, kill_at: int, cold: str, tmp_path: Path
) -> None:
    pytest.importorskip("gymnasium")
    undisturbed, killed, without = (tmp_path / name for name in "URC")
    expected = last_line(start(example, undisturbed))
    start(example, killed, kill_at=kill_at, expect=-9)
    shutil.copytree(killed, without)
    said = start(example, killed)
    assert "goes on at step" in said
    assert re.search(r"exact: all \d parts", said)
    assert last_line(said) == expected
    ends = end_of(undisturbed, example), end_of(killed, example)
    assert without_clocks(compare(*ends), *ends) == []
    assert last_line(start(example, without, cold=cold)) != expected


@pytest.mark.parametrize("example", PAGES)
def test_the_page_holds_the_whole_program(example: str) -> None:
    page = (ROOT / "docs" / PAGES[example]).read_text()
    for file in sorted((ROOT / "examples" / example).glob("*.py")):
        assert f"# examples/{example}/{file.name}\n{file.read_text()}```\n" in page, file.name


def test_the_adapter_is_as_short_as_the_page_says() -> None:
    lines = (ROOT / "examples" / "adapter" / "minilearn_unbroken.py").read_text().splitlines()
    assert len(lines) <= 60


class Adapter:
    """Tracked, told by two methods, and with a way back to the run that saves it, as an adapter's parts have."""

    def __init__(self, run: unbroken.Run) -> None:
        self.run = run
        self.count = 0

    def capture(self) -> dict[str, int]:
        return {"count": self.count}

    def restore(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize("total", [3, 5])
def test_a_tracked_object_may_lead_back_to_its_run(total: int, tmp_path: Path) -> None:
    counts = []
    for until in (total, total + 4):
        run = unbroken.Run(tmp_path / "run", every=1, quiet=True)
        adapter = Adapter(run)
        run.track(adapter=adapter, weights=np.zeros(2))
        for _ in run.steps(until):
            adapter.count += 1
        counts.append(adapter.count)
    assert counts == [total, total + 4]
