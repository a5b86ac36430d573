"""Servers as processes: they start, come back at their address, and end with whoever started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from stack import PATIENCE, Stack, counter, preloaded, project_in

from unbroken.adapters.nemo_gym.launch.record import FOLDER, Record, becomes_free
from unbroken.adapters.nemo_gym.launch.supervisor import Servers
from unbroken.errors import ConfigError, RunBusy, ServerMissing
from unbroken.repo.process import Process, identify

COUNTER = "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml"
MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"
PLAIN = {
    "res": {"resources_servers": {"example_session_state_mgmt": {"entrypoint": "app.py", "domain": "agent", "unbroken": False}}}
}  # fmt: skip


def processes_of(servers: Servers) -> dict[str, Process]:
    return {name: identify(pid) for name, pid in servers.pids.items()}


def test_a_server_of_its_own_interpreter_ends_with_the_thread_that_supervises(tmp_path: Path) -> None:
    script = (
        "import json, sys; from unbroken.adapters.nemo_gym.launch.supervisor import Servers\n"
        "with Servers(json.loads(sys.argv[2]), directory=sys.argv[1]) as servers:\n"
        "    print(servers.pids['res'], flush=True); servers.wait()"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), json.dumps(PLAIN)], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    server = identify(int(supervisor.stdout.readline()))
    assert server.is_alive()
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    assert server.wait(PATIENCE)


def test_a_rollout_over_real_processes_which_keep_their_addresses(tmp_path: Path) -> None:
    with Stack(tmp_path, wrapped=False) as stack:
        assert stack.run(counter(1, 2))["reward"] == 1.0
        assert stack.model_calls() == [0, 1, 2, 3]
        before, pids = stack.addresses, stack.servers.pids
        stack.restart("all")
        assert stack.addresses == before
        assert not set(pids.values()) & set(stack.servers.pids.values())
        assert stack.run(counter(4))["reward"] == 1.0
    with Stack(tmp_path, wrapped=False) as stack:
        assert stack.addresses == before


def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    with Stack(tmp_path, wrapped=False, supervised=True) as stack:
        stack.hold(1)
        answer = stack.run_later(counter(1, 2))
        stack.await_turn(1)
        died = identify(stack.servers.pids["policy_model"])
        os.kill(died.pid, signal.SIGKILL)
        assert died.wait(PATIENCE)
        stack.let_go(1)
        assert answer.result(PATIENCE)["reward"] == 1.0  # the agent went on asking at the same address
        assert stack.servers.restarted == {"policy_model": 1}
        assert stack.model_calls() == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(("wrapped", "reward"), [(True, 1.0), (False, 0.0)])
def test_a_supervised_server_comes_back_with_its_sessions_if_it_is_wrapped(
    tmp_path: Path, wrapped: bool, reward: float
) -> None:
    with Stack(tmp_path, wrapped=wrapped, supervised=True) as stack:
        stack.hold(2)
        answer = stack.run_later(counter(1, 2, 3))
        stack.await_turn(2)
        before = stack.digests() if wrapped else {}
        died = identify(stack.servers.pids["res"])
        os.kill(died.pid, signal.SIGKILL)
        assert died.wait(PATIENCE)
        while not stack.servers.restarted:
            stack.servers.check()
            time.sleep(0.01)
        stack.servers.await_ready(["res"])
        assert (stack.digests() if wrapped else {}) == before
        stack.let_go(2)
        assert answer.result(PATIENCE)["reward"] == reward
        assert stack.model_calls() == [0, 1, 2, 3, 4]


def test_a_test_can_bring_a_server_by_its_class(tmp_path: Path) -> None:
    brought = "resources_servers.example_session_state_mgmt.app:StatefulCounterResourcesServer"
    with Stack(tmp_path, resources=brought) as stack:
        assert stack.run(counter(1))["reward"] == 1.0
        assert stack.status().class_name == "StatefulCounterResourcesServer"


def test_one_that_dies_too_often_takes_the_others_with_it(tmp_path: Path) -> None:
    with Stack(tmp_path, wrapped=False) as stack:  # not supervised: no death is allowed
        every = processes_of(stack.servers)
        os.kill(every["res"].pid, signal.SIGKILL)
        with pytest.raises(ServerMissing, match="res died 1 times") as caught:
            stack.servers.wait()
        assert caught.value.servers == ("res",)
        stack.servers.close()
        assert [process.is_alive() for process in every.values()] == [False, False, False]
        assert stack.servers.failed


def test_a_server_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "resources_servers" / "broken"
    broken.mkdir(parents=True)
    (broken / "app.py").write_text("import not_there\n\nif __name__ == '__main__':\n    A.run_webserver()\n")
    config = {**PLAIN, "bad": {"resources_servers": {"broken": {"entrypoint": "app.py", "unbroken": False}}}}
    servers = Servers(config, directory=tmp_path / "gym", project=tmp_path, preload=preloaded())
    with pytest.raises(ServerMissing, match=r"(?s)bad ended before it answered.*not_there.*requirements.txt"):
        servers.start()
    assert servers.pids == {}
    with pytest.raises(ServerMissing):
        Servers(
            config, directory=tmp_path / "gym", project=tmp_path, preload=preloaded()
        ).start()  # the directory is free again


def test_a_directory_has_one_supervisor(tmp_path: Path) -> None:
    with Servers(PLAIN, directory=tmp_path, preload=preloaded()) as servers:
        with pytest.raises(RunBusy):
            Servers(PLAIN, directory=tmp_path).start()
        script = "import sys; from unbroken.adapters.nemo_gym.launch.supervisor import Servers; Servers({}, directory=sys.argv[1]).start()"
        other = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert "RunBusy" in other.stderr
        assert httpx.get(servers.addresses["res"]).json() == {"status": "ok"}


def test_a_fixed_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with Servers(PLAIN, directory=tmp_path / "a", preload=preloaded()) as servers:
        port = int(servers.addresses["res"].rpartition(":")[2])
        settings = {**PLAIN["res"]["resources_servers"]["example_session_state_mgmt"], "port": port}
        config = {"res": {"resources_servers": {"example_session_state_mgmt": settings}}}
        with pytest.raises(ConfigError, match=f"port {port} of res is taken"):
            Servers(config, directory=tmp_path / "b").start()


@pytest.mark.parametrize("preload", [pytest.param(False, marks=pytest.mark.exactness), True])
def test_nothing_survives_the_kill_of_the_supervisor(tmp_path: Path, preload: bool) -> None:
    project = project_in(tmp_path)
    configs = project / MODEL
    configs.parent.mkdir()
    configs.write_text(
        "policy_model: {responses_api_models: {scripted_model: {entrypoint: app.py, unbroken: false}}}\n"
    )
    plain = project / "plain.yaml"
    plain.write_text(
        "example_session_state_mgmt_resources_server: {resources_servers: {example_session_state_mgmt: {unbroken: false}}}\n"
        "example_session_state_mgmt_simple_agent: {responses_api_agents: {simple_agent: {unbroken: false}}}\n"
    )
    command = [
        sys.executable, "-m", "unbroken.adapters.nemo_gym.launch", "up", COUNTER, MODEL, "plain.yaml", "--head",
        "--dir", str(tmp_path / "gym"), *(["--preload"] if preload else []),
    ]  # fmt: skip

    def up(started: list[subprocess.Popen[str]]) -> tuple[subprocess.Popen[str], list[str]]:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=project)
        started.append(child)
        assert child.stdout is not None
        lines: list[str] = []
        for line in child.stdout:
            lines.append(line)
            if line.startswith("all servers are ready"):
                break
        return child, lines

    started: list[subprocess.Popen[str]] = []
    try:
        _check_kill(tmp_path, lambda: up(started))
    finally:
        for child in started:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def _check_kill(directory: Path, up: Callable[[], tuple[subprocess.Popen[str], list[str]]]) -> None:
    first, said = up()
    record = Record.read(directory / "gym" / FOLDER / "servers.json")
    assert len(record.processes) == 4
    assert all(process.is_alive() for process in record.processes.values())
    head = f"http://127.0.0.1:{record.ports['head_server']}/global_config_dict_yaml"
    assert f"port: {record.ports['policy_model']}" in httpx.get(head).json()
    first.kill()
    first.wait()
    assert all(process.wait(PATIENCE) for process in record.processes.values())
    assert all(becomes_free("127.0.0.1", port) for port in record.ports.values())

    second, said_again = up()
    assert said_again == said
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0
    assert Record.read(record.path).processes == {}
