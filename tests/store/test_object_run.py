"""A whole training in a bucket: killed in the middle of its uploads, it ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.training import Training, source_of
from tests.store.proxy import Fault, Proxy, Request, when
from tests.store.servers import Server
from unbroken.cli import main
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.errors import Fenced
from unbroken.repo.repository import Repository, jobs

PROJECT = Path(__file__).parents[2]
STEPS = 60


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def root(seaweedfs: Server, through: Proxy) -> str:
    return seaweedfs.place()


def started(root: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.store.object_script", root, str(STEPS)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=PROJECT
    )


def ended(process: subprocess.Popen[str]) -> tuple[list[str], str]:
    """Return the words of the start and the last line; the process must have ended in order."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    first, last = out.splitlines()
    return first.split("\t"), last


def killed_at(root: str, through: Proxy, target: str, number: int, fault: Fault) -> list[str]:
    """Start the script and kill it when it sends this upload; return the words of its start."""
    process = started(root)
    left = [number]

    def kill(request: Request) -> Fault | None:
        if request.method != "PUT" or target not in request.target:
            return None
        left[0] -= 1
        if left[0]:
            return None
        process.send_signal(signal.SIGKILL)
        process.wait()
        return fault

    through.rule = kill
    out, _ = process.communicate()
    through.rule = when(fault, times=0)
    assert process.returncode == -signal.SIGKILL
    return out.split("\t")


def test_killed_in_its_uploads_it_ends_as_if_undisturbed(
    root: str, through: Proxy, seaweedfs: Server, state: Path
) -> None:
    _, expected = ended(started(seaweedfs.place()))
    assert killed_at(root, through, "/commits/", 3, Fault.REFUSED)[0] == "0"
    assert len(list(state.rglob("pending.json"))) == 1
    step, fault = killed_at(root, through, "/packs/", 1, Fault.REFUSED)
    assert step == "10", "the commit of step 20 was not written"
    assert "soft" in fault
    assert "in the middle of saving step 20" in fault
    assert killed_at(root, through, "/commits/", 2, Fault.LOST)[0] == "10"
    words, end = ended(started(root))
    assert words[0] == "30", "that commit was written, and nobody was told"
    assert end == expected
    assert list(state.rglob("pending.json")) == []
    repository = Repository.open(root, "run")
    assert [commit.step for commit in repository.commits()][:3] == [60, 50, 40]
    assert all(repository.verify(commit) == [] for commit in repository.commits())


def test_a_companion_finishes_the_upload_in_which_the_training_was_killed(
    root: str, through: Proxy, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = ended(started(seaweedfs.place()))
    monkeypatch.setenv("UNBROKEN_WRITER", "process")
    killed_at(root, through, "/commits/", 3, Fault.REFUSED)
    words, end = ended(started(root))
    assert words[0] == "20", "its commit was refused once, and tried again"
    assert end == expected


def test_a_save_returns_while_the_network_hangs(root: str, through: Proxy, state: Path) -> None:
    training, answered = Training(), threading.Event()
    engine = CheckpointEngine(source_of(training), Settings(root=root, job="run"), environment={})
    engine.resume()
    for _ in range(7):
        training.step()
    hung: list[bool] = []

    def hang(request: Request) -> None:
        hung.append(answered.wait(timeout=120))

    through.rule = hang
    engine.save(7, reason="asked for")
    assert hung == [], "nothing was waited for"
    assert len(list(state.rglob("pending.json"))) == 1
    answered.set()
    engine.close()
    assert all(hung)
    assert [commit.step for commit in Repository.open(root, "run").commits()] == [7, 0]


@pytest.mark.parametrize(
    ("machine", "kind"), [("another", "hard"), ("the same", "soft")], ids=["machine", "container"]
)
def test_a_start_elsewhere_takes_the_run_over(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, kind: str
) -> None:
    """Elsewhere the state directory and the name of the host are others; on another machine the boot is, too."""
    settings = Settings(root=root, job="run")
    first = CheckpointEngine(source_of(Training()), settings, environment={})
    first.resume()
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    if machine == "another":
        monkeypatch.setattr("unbroken.repo.process._boot_id", lambda: "of another boot")
    with CheckpointEngine(source_of(Training()), settings, environment={}) as second:
        assert second.resume().fault.kind.value == kind
        with pytest.raises(Fenced):
            first.save(1, reason="too late", wait=True)
        second.save(2, reason="in time", wait=True)
    with pytest.raises(Fenced):
        first.close()
    assert [commit.step for commit in Repository.open(root, "run").commits()] == [2, 0]


def test_the_command_reads_a_bucket(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        with CheckpointEngine(source_of(Training()), Settings(root=root, job=name), environment={}) as engine:
            engine.resume()
            engine.save(12, reason="asked for", wait=True)
    assert jobs(root) == ["first", "second"]
    for arguments, expected in told(root):
        assert main(arguments) == 0
        assert expected in capsys.readouterr().out
    assert main(["verify", root]) != 0
    assert "holds 2 runs: first, second" in capsys.readouterr().err
    assert main(["show", f"{root}/third"]) != 0
    assert "holds no run" in capsys.readouterr().err


def told(root: str) -> Iterator[tuple[list[str], str]]:
    newest = Repository.open(root, "first").commits()[0].directory
    yield ["ls", root], f"{root}/second"
    yield ["ls", f"{root}/first"], f"{root}/first"
    yield ["show", f"{root}/first@12"], f"{root}/first/{newest}"
    yield ["show", f"{root}/first/{newest}"], f"{root}/first/{newest}"
    yield ["verify", f"{root}/first/"], "intact"
    yield ["diff", f"{root}/first@12", f"{root}/second@latest"], "equal"
