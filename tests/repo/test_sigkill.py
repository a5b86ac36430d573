"""The same as test_crash.py with a real process, real files and a real SIGKILL, at a few places."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention

from .states import assert_sound, assert_swept, meta, snapshot

WRITER = """
import sys
from pathlib import Path
import numpy as np
from unbroken.format.meta import Meta
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.state.nodes import Array
from unbroken.state.snapshot import Component, Snapshot
from unbroken.store.local import LocalStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind

class FaultyLocalStore(FaultyStore):
    def local_path(self, key=""):
        return self.inner.local_path(key)

root, kind, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = FaultyLocalStore(LocalStore(root / "job"), fault=Fault(Kind[kind], at))
repository = Repository.over(store, "job", create=True)
with repository.writer() as writer:
    for step in range(1, 5):
        blob = np.full(3000, step, np.uint8)
        part = Component("weights", roots={"w": Array(d="|u1", s=(3000,), b=0)}, blobs=[blob])
        writer.mark_pending(step, "schedule")
        commit = writer.write(Snapshot(components={"weights": part}), Meta(step=step))
        print(commit.sequence, commit.step, flush=True)
        writer.retain(plan_retention(repository.commits(), keep_last=2))
print("end", len(store.operations), flush=True)
"""


def run_writer(root: Path, kind: str, at: int) -> tuple[list[str], int]:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(root), kind, str(at)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.splitlines(), done.returncode


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many changes to the store the writer makes when nobody kills it."""
    lines, status = run_writer(tmp_path_factory.mktemp("whole"), "KILL_AFTER", 10**6)
    assert status == 0
    return int(lines[-1].split()[1])


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("KILL_AFTER", 0.05),
        ("KILL_BEFORE", 0.15),
        ("KILL_AFTER", 0.3),
        ("KILL_BEFORE", 0.45),
        ("KILL_AFTER", 0.6),
        ("KILL_BEFORE", 0.75),
        ("KILL_AFTER", 0.9),
    ],
)
def test_a_killed_process_loses_nothing(tmp_path: Path, operations: int, kind: str, share: float) -> None:
    lines, status = run_writer(tmp_path, kind, int(operations * share))
    assert status == -signal.SIGKILL
    repository = Repository.open(tmp_path, "job", create=True)
    seen = repository.commits()
    assert_sound(repository)
    if lines:
        newest = int(lines[-1].split()[0])
        assert seen[0].sequence >= newest, "the last acknowledged commit is there"
    if seen:
        blob = repository.load(seen[0]).components["weights"].content(0)
        assert (blob == seen[0].step).all()
    with repository.writer() as writer:
        assert repository.commits() == seen
        assert_swept(repository)
        after = writer.write(snapshot(), meta(9))
        assert after.sequence > max((commit.sequence for commit in seen), default=0)
        writer.retain(plan_retention(repository.commits(), keep_last=1))
    assert_sound(repository)
    assert_swept(repository)
