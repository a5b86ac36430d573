"""Real process trees: what is started is killed, whole, and nothing else."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unbroken.errors import ConfigError
from unbroken.proving.launch import KillTarget, Launch

FAMILY = """
import os, subprocess, sys, time
def note(name): open(os.path.join(sys.argv[1], name), "w").write(str(os.getpid()))
progress = os.open(os.path.join(sys.argv[1], "progress"), os.O_RDWR | os.O_CREAT)
reader, writer = os.pipe()
if os.fork() == 0:                      # a worker, with the trainer's files
    note("worker")
    if os.fork() == 0:                  # a daemon: own session, parent gone
        os.setsid()
        if os.fork() == 0:
            note("daemon"); os.write(writer, b"1"); time.sleep(600)
        os._exit(0)
    os.write(writer, b"1"); time.sleep(600)
os.read(reader, 1); os.read(reader, 1)
note("trainer"); note("ready")
if "leave" not in sys.argv: time.sleep(600)
"""


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


def launch(tmp_path: Path, *words: str) -> Launch:
    return Launch(
        words,
        env=os.environ,
        cwd=tmp_path,
        out=tmp_path / "out",
        err=tmp_path / "err",
        progress=tmp_path / "progress",
    )


def family(tmp_path: Path, *words: str) -> Launch:
    started = launch(tmp_path, sys.executable, "-c", FAMILY, str(tmp_path), *words)
    while not (tmp_path / "ready").exists():
        assert not started.wait(0.002) or "leave" in words, (tmp_path / "err").read_text()
    return started


def alive(tmp_path: Path) -> set[str]:
    return {name for name in ("trainer", "worker", "daemon") if lives(int((tmp_path / name).read_text()))}


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_output_and_exit_code(tmp_path: Path) -> None:
    with launch(tmp_path, "sh", "-c", "echo to out; echo to err >&2; exit 3") as process:
        assert process.wait(60)
        process.leave()
        assert process.exit_code == 3
        assert process.empty
    assert (tmp_path / "out").read_text() == "to out\n"
    assert (tmp_path / "err").read_text() == "to err\n"


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-command: No such file"):
        launch(tmp_path, "no-such-command")


def test_the_tree_dies_whole_and_alone(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    with family(tmp_path) as process:
        assert alive(tmp_path) == {"trainer", "worker", "daemon"}
        assert process.kill("tree")
        assert process.exit_code == -signal.SIGKILL
        assert alive(tmp_path) == set()
    assert stranger.poll() is None


def test_only_the_trainer_dies_until_the_end(tmp_path: Path) -> None:
    with family(tmp_path) as process:
        assert process.kill("trainer")
        assert process.exit_code == -signal.SIGKILL
        assert alive(tmp_path) == {"worker", "daemon"}
    assert alive(tmp_path) == set()


def test_the_trainer_is_found_below_a_shell(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    line = f'{sys.executable} family.py "{tmp_path}"; echo "shell saw $?"'
    process = launch(tmp_path, "sh", "-c", line)
    with process:
        while not (tmp_path / "ready").exists():
            assert not process.wait(0.002)
        assert process.kill("trainer")
        assert process.exit_code == 0
    assert "shell saw 137" in (tmp_path / "out").read_text()


def test_leftovers_of_a_normal_end_are_killed(tmp_path: Path) -> None:
    with family(tmp_path, "leave") as process:
        assert process.wait(60)
        assert "daemon" in alive(tmp_path)
    assert alive(tmp_path) == set()


def test_the_tree_dies_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner_code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_launch import family
process = family(Path({str(tmp_path)!r}))
print(process._process.pid, flush=True)
process.wait(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    supervisor = os.pidfd_open(int(owner.stdout.readline()))
    assert alive(tmp_path) == {"trainer", "worker", "daemon"}
    owner.kill()
    owner.communicate()
    # A pidfd becomes readable when its process ends; the supervisor ends last of all.
    assert select.select([supervisor], [], [], 60)[0]
    os.close(supervisor)
    assert alive(tmp_path) == set()


def test_signals_are_as_a_shell_leaves_them(tmp_path: Path) -> None:
    show = "import signal; print(*[signal.getsignal(s).name for s in (signal.SIGTERM, signal.SIGHUP)])"
    with launch(tmp_path, sys.executable, "-c", show) as process:
        assert process.wait(60)
    assert (tmp_path / "out").read_text() == "SIG_DFL SIG_DFL\n"


@pytest.mark.parametrize("target", ["tree", "trainer"])
def test_a_kill_after_the_end_is_none(tmp_path: Path, target: KillTarget) -> None:
    with launch(tmp_path, "true") as process:
        assert process.wait(60)
        assert not process.kill(target)
        assert process.exit_code == 0
