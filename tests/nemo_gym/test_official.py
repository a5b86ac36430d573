"""The official commands, `ng_run` and `ng_collect_rollouts`, with wrapped servers: everything is killed, and the same
commands finish what was in flight. Ray starts here, as it does for a user.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stack import HERE, PATIENCE, counter

from tests.adapters.rays import apart
from tests.ports import free_port
from unbroken.adapters.nemo_gym.launch.locate import install_root
from unbroken.adapters.nemo_gym.launch.rollouts_file import trim_torn_line
from unbroken.errors import ConfigError
from unbroken.proving.supervisor import stat

COUNTER = "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml"
AGENT = "example_session_state_mgmt_simple_agent"
BIN = Path(sys.executable).parent
SHORT, LONG = (1, 2), (1, 2, 3)
LAST_OF_LONG = 4
"""The turn that rollouts with three additions come to, and those with two do not."""


class Project:
    """A user's directory with a model of his own, and what he types there."""

    def __init__(self, directory: Path, *, wrapped: bool) -> None:
        self.hold = directory / "hold"
        self.hold.mkdir()
        self.calls = directory / "calls"
        source = directory / "source"
        model = source / "responses_api_models" / "scripted_model"
        model.mkdir(parents=True)
        (model / "app.py").write_bytes((HERE / "scripted_model.py").read_bytes())
        (source / "mine.yaml").write_text(
            "policy_model: {responses_api_models: {scripted_model: "
            f"{{entrypoint: app.py, call_log: {self.calls}, hold: {self.hold}}}}}}}\n"
        )
        self.home = directory / "wrapped" if wrapped else source
        self.environment = {
            **apart(),  # of both commands: the second finds the cluster of the first
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "UNBROKEN_GYM_DIR": str(directory / "gym"),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if wrapped:
            self.said = subprocess.run(
                [sys.executable, "-m", "unbroken.adapters.nemo_gym.launch", "wrap", COUNTER, "mine.yaml", "--out", self.home],
                cwd=source, env=self.environment, check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
        else:
            self._without_wrapping()
        self.out = self.home / "out.jsonl"
        self._head = f"+head_server={{host: 127.0.0.1, port: {free_port()}}}"
        rows = [counter(*adds, start=start) for start, adds in enumerate((SHORT, SHORT, LONG, LONG))]
        (self.home / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def _without_wrapping(self) -> None:
        """NeMo Gym as it is, on the same footing: directories in which no environment has to be built."""
        installed = install_root()
        for server in ("resources_servers/example_session_state_mgmt", "responses_api_agents/simple_agent"):
            (self.home / server).mkdir(parents=True)
            (self.home / server / "app.py").write_bytes((installed / server / "app.py").read_bytes())
        for app in self.home.glob("*/*/app.py"):
            (app.parent / "requirements.txt").touch()
            (app.parent / ".venv").symlink_to(sys.prefix)

    @contextmanager
    def servers(self) -> Generator[subprocess.Popen[str]]:
        """Run `ng_run` until the block ends; then all of it is killed."""
        command = [
            "ng_run", f"+config_paths=[{COUNTER},mine.yaml]", self._head, "+skip_venv_if_present=true",
        ]  # fmt: skip
        with self._running(command) as process:
            assert process.stdout is not None
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if "servers ready!" in line:
                    break
            else:
                raise AssertionError("".join(said))
            # Whoever writes into a full pipe stands still.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield process

    @contextmanager
    def collecting(self) -> Generator[subprocess.Popen[str]]:
        command = [
            "ng_collect_rollouts", self._head, f"+agent_name={AGENT}", "+input_jsonl_fpath=in.jsonl",
            "+output_jsonl_fpath=out.jsonl", "+upload_rollouts_to_wandb=false", "+resume_from_cache=true",
        ]  # fmt: skip
        with self._running(command) as process:
            yield process

    @contextmanager
    def _running(self, command: Sequence[str]) -> Generator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            command, cwd=self.home, env=self.environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield process
        finally:
            kill_session(process.pid)
            process.wait()

    def model_calls(self) -> list[int]:
        return [int(line) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []

    def rewards(self) -> list[float]:
        whole = self.out.read_text().rpartition("\n")[0] if self.out.exists() else ""
        return [json.loads(line)["reward"] for line in whole.splitlines()]


def kill_session(leader: int) -> None:
    """Send SIGKILL to all that a command has started: its servers, and Ray."""
    while left := [
        pid for pid in sessions().get(leader, []) if (now := stat(pid)) is not None and now[2] not in "ZX"
    ]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def sessions() -> dict[int, list[int]]:
    """Return the processes of each session."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.setdefault(os.getsid(int(name)), []).append(int(name))
            except ProcessLookupError:
                continue
    return found


def interrupted(project: Project) -> None:
    """Two rollouts finish, two stand at their last turn; then everything is killed, in the middle of a line."""
    (project.hold / str(LAST_OF_LONG)).touch()
    with project.servers(), project.collecting() as collecting:
        deadline = time.monotonic() + PATIENCE
        while len(project.rewards()) < 2 or project.model_calls().count(LAST_OF_LONG) < 2:
            assert collecting.poll() is None and time.monotonic() < deadline, project.model_calls()
            time.sleep(0.05)
    (project.hold / str(LAST_OF_LONG)).unlink()
    assert project.rewards() == [1.0, 1.0]
    with open(project.out, "a") as out:
        out.write('{"responses_create_params": {"inp')
    assert trim_torn_line(project.out) == 33


def finish(project: Project) -> None:
    with project.servers(), project.collecting() as collecting:
        said, _ = collecting.communicate(timeout=PATIENCE)
        assert collecting.returncode == 0, said


def test_the_official_commands_finish_what_was_in_flight(tmp_path: Path) -> None:
    project = Project(tmp_path, wrapped=True)
    assert (
        "StatefulCounterResourcesServer of resources_servers.example_session_state_mgmt.app" in project.said
    )
    interrupted(project)
    before = project.model_calls()
    finish(project)
    assert project.rewards() == [1.0] * 4
    # Only the two turns that were being generated are generated again.
    assert project.model_calls()[len(before) :] == [LAST_OF_LONG] * 2


@pytest.mark.exactness
def test_without_wrapping_they_generate_everything_again(tmp_path: Path) -> None:
    project = Project(tmp_path, wrapped=False)
    interrupted(project)
    before = project.model_calls()
    finish(project)
    assert sorted(project.model_calls()[len(before) :]) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_directories_that_were_not_written_here_are_left_alone(tmp_path: Path) -> None:
    from unbroken.adapters.nemo_gym.launch.project import wrap

    app = tmp_path / "out" / "resources_servers" / "blackjack" / "app.py"
    app.parent.mkdir(parents=True)
    app.write_text("# mine\n")
    config: dict[str, Any] = {"res": {"resources_servers": {"blackjack": {"entrypoint": "app.py"}}}}
    with pytest.raises(ConfigError, match="was not written here"):
        wrap(config, out=tmp_path / "out")
    assert app.read_text() == "# mine\n"


def test_what_is_said_under_unbroken_is_in_the_wrapper(tmp_path: Path) -> None:
    from unbroken.adapters.nemo_gym.launch.project import wrap

    settings = {"entrypoint": "app.py", "unbroken": {"log_states": True, "exclude": ["deck"]}}
    wrap({"res": {"resources_servers": {"blackjack": settings}}}, out=tmp_path)
    text = (tmp_path / "resources_servers" / "blackjack" / "app.py").read_text()
    assert "checkpointed(BlackjackEnv, log_states=True, exclude=['deck']).run_webserver()" in text
