"""Two real processes on one run: one is stopped (SIGSTOP), the other takes the run over, the first wakes up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from tests.store.servers import SeaweedFS, Server
from unbroken.repo.repository import Repository

SCRIPT = Path(__file__).with_name("two_processes.py")
Place: TypeAlias = Literal["never", "between", "committing"]
Started: TypeAlias = "subprocess.Popen[str]"
Start: TypeAlias = "Callable[..., Started]"


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    server.stop()


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    if getattr(request, "param", "directory") == "directory":
        return str(tmp_path / "root")
    server: Server = request.getfixturevalue("seaweedfs")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return server.place()


@pytest.fixture
def start(root: str, tmp_path: Path) -> Iterator[Start]:
    """Start the training; what is left of it at the end is killed."""
    running: list[Started] = []

    def begin(place: Place = "never", *, at: str = root, more: Mapping[str, str] | None = None) -> Started:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), at, place],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **(more or {})},
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def stopped(process: Started) -> Started:
    """Wait until it has stopped itself."""
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert found is not None
    assert found.si_code == os.CLD_STOPPED, process.communicate()
    return process


def ended(process: Started, *, code: int) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out.strip(), err


@pytest.mark.parametrize(
    ("root", "place"),
    [("directory", "between"), ("directory", "committing"), ("bucket", "committing")],
    indirect=["root"],
    ids=["in-a-directory", "in-a-directory-while-it-commits", "in-a-bucket-while-it-commits"],
)
def test_one_that_is_stopped_is_taken_over_on_purpose_and_its_late_commit_is_inert(
    root: str, start: Start, tmp_path: Path, place: Place
) -> None:
    undisturbed, _ = ended(start(at=str(tmp_path / "undisturbed")), code=0)
    first = stopped(start(place))

    _, refused = ended(start(), code=1)
    assert f"RunBusy: The run 'run' is in use by process {first.pid} on " in refused
    epoch = re.search(r"UNBROKEN_TAKE_OVER=(\d+) takes the run from it", refused)
    assert epoch is not None
    assert [c.step for c in Repository.open(root, "run").commits()][:1] == [30 if place == "between" else 20]

    taking = {"UNBROKEN_TAKE_OVER": epoch[1]}
    killed = stopped(start("between", more=taking))
    _, refused = ended(start(more=taking), code=1)
    assert f"in use by process {killed.pid} on " in refused, (
        "it is taken from the first one, and from nobody else"
    )
    killed.kill()
    killed.communicate()
    done, _ = ended(start(more=taking), code=0)
    assert done == undisturbed

    before = Repository.open(root, "run").commits()
    first.send_signal(signal.SIGCONT)
    _, fenced = ended(first, code=1)
    assert "Fenced: The run was taken over by process " in fenced
    after = Repository.open(root, "run")
    assert after.commits() == before
    # Where the record was being written, the sleeper still writes it: it lies there, and does not count.
    assert [(c.epoch, c.step) for c in after.stale()] == ([(1, 30)] if place == "committing" else [])
    assert all(after.verify(commit) == [] for commit in after.commits())
    again, _ = ended(start(), code=0)
    assert again == undisturbed


def test_a_number_that_is_none_is_refused(tmp_path: Path, start: Start) -> None:
    _, refused = ended(start(at=str(tmp_path / "fresh"), more={"UNBROKEN_TAKE_OVER": "yes"}), code=1)
    assert "UNBROKEN_TAKE_OVER='yes' is no number" in refused
    left = [path.name for path in (tmp_path / "fresh").rglob("*") if path.is_file()]
    assert left == ["format.json"], "no epoch, no lease, no line of history, no commit"
