"""Rollouts on servers that fail in every way: what is a result, what is sent again, and what is neither."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import unbroken
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.trainer.addresses import servers_of
from unbroken.errors import ConfigError, Fenced, ServerMissing
from unbroken.nemo_gym import Gym, RolloutWarning

from .stand_in import TOKEN, Agent, Crash, Model, Reply, Resources, Stack

SERVER = "tests.adapters.nemo_gym.trainer.resources_process"
ROOT = Path(__file__).parents[4]


@pytest.fixture
def gym(stack: Stack) -> Iterator[Gym]:
    with Gym(stack.urls, token=TOKEN, sync_timeout=300, patience=300) as found:
        yield found


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [{"prompt": 10 + i, "weight": 0.5} for i in range(count)]


def test_rollouts_come_back_in_the_order_of_their_rows(gym: Gym) -> None:
    found = gym.collect(rows(8), policy_version="v1")
    assert [r.row["prompt"] for r in found] == list(range(10, 18))
    assert [r.id for r in found] == [f"0-{i}" for i in range(8)]
    assert {r.outcome for r in found} == {"completed"}
    assert all(r.response is not None and r.reward == r.response["reward"] for r in found)
    assert {r.policy_versions for r in found} == {("v1",)}


def test_the_model_is_told_its_version_when_it_changes(stack: Stack, gym: Gym) -> None:
    for version in (1, 1, 2):
        gym.collect(rows(1), policy_version=version)
    assert stack.model.policies == ["1", "2"]


def test_nothing_is_asked_before_the_first_rollout(stack: Stack, gym: Gym) -> None:
    assert stack.agent.asked == []
    gym.collect(rows(1))
    assert stack.agent.asked[:4] == ["status", "adopt", "sessions", "release"]


def test_an_infrastructure_that_fails_is_never_a_reward_of_zero(stack: Stack, gym: Gym) -> None:
    """H1: the connection breaks in the middle of a rollout. It is sent again, under the next attempt."""

    def lost(rollout: str, attempt: int) -> Reply | None:
        if rollout == "0-1" and attempt == 0:
            raise Crash
        return None

    stack.agent.instead = lost
    found = gym.collect(rows())
    assert [(r.attempt, r.outcome) for r in found] == [(0, "completed"), (1, "completed"), (0, "completed")]
    assert all(r.reward for r in found)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_tool_server_that_is_killed_during_a_rollout_costs_no_reward(
    stack: Stack, comes_back: bool
) -> None:
    """H1, with a real SIGKILL: what reaches the trainer is a rollout that was made again, or none."""
    servers: list[subprocess.Popen[str]] = []

    def start(port: int) -> int:
        server = subprocess.Popen(
            [sys.executable, "-m", SERVER, str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        servers.append(server)
        assert server.stdout is not None
        return int(server.stdout.readline())

    def before(_: str, call: int) -> None:
        if call == 2:  # the session is seeded, and one step of it made
            servers[0].kill()
            servers[0].wait()
            if comes_back:
                start(port)

    port = start(0)
    stack.model.before = before
    address = f"http://127.0.0.1:{port}"
    stack.agent.address = address
    try:
        patience = 300 if comes_back else 0.2
        with Gym({**stack.urls, "res": address}, token=TOKEN, patience=patience) as gym:
            if comes_back:
                (found,) = gym.collect(rows(1))
                assert found.response is not None
                assert (found.attempt, found.outcome) == (1, "completed")
                assert found.response["response"]["state"]["steps"] == 2
            else:
                with pytest.warns(RolloutWarning, match="are not to be trained on"):
                    (found,) = gym.collect(rows(1))
                assert (found.outcome, found.reward) == ("unresolved", None)
    finally:
        for server in servers:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()


def test_deaths_of_an_agent_cost_no_attempts(stack: Stack) -> None:
    """Its connection breaks more often than a rollout may be refused: an agent that comes back goes on where it was."""

    def lost(rollout: str, attempt: int) -> Reply | None:
        if attempt < 4:
            raise Crash
        return None

    stack.agent.instead = lost
    with Gym(stack.urls, token=TOKEN, patience=60, max_attempts=2) as gym:
        (found,) = gym.collect(rows(1))
    assert (found.attempt, found.outcome) == (4, "completed")


def test_one_that_is_refused_each_time_is_failed_after_its_attempts(stack: Stack, gym: Gym) -> None:
    stack.agent.instead = lambda rollout, attempt: (409, {words.REFUSED: "lost session"}, b"gone")
    with pytest.warns(RolloutWarning):
        (found,) = gym.collect(rows(1))
    assert (found.outcome, found.error, len(stack.agent.runs)) == ("failed", "lost session: gone", 3)


def test_one_that_is_lost_each_time_is_unresolved_and_named(stack: Stack) -> None:
    def lost(rollout: str, attempt: int) -> Reply | None:
        if rollout == "0-1":
            raise Crash
        return None

    stack.agent.instead = lost
    with (
        Gym(stack.urls, token=TOKEN, patience=0.2) as gym,
        pytest.warns(RolloutWarning, match=r"1 of 3 rollouts have no reward.*0-1 \(unresolved\)"),
    ):
        found = gym.collect(rows())
    assert [(r.outcome, r.reward is None) for r in found] == [
        ("completed", False), ("unresolved", True), ("completed", False),
    ]  # fmt: skip
    assert [attempt for rollout, attempt in stack.agent.runs if rollout == "0-1"][:3] == [0, 1, 2]


def test_what_the_agents_own_code_raises_is_failed_at_once(stack: Stack, gym: Gym) -> None:
    stack.agent.instead = lambda rollout, attempt: (500, {}, b"KeyError: 'x'")
    with pytest.warns(RolloutWarning):
        (found,) = gym.collect(rows(1))
    assert (found.outcome, found.reward, found.error) == ("failed", None, "HTTP 500: KeyError: 'x'")
    assert len(stack.agent.runs) == 1


def test_rollouts_that_begin_anew_are_said_once(
    stack: Stack, gym: Gym, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.agent.instead = lambda rollout, attempt: (
        (409, {words.REFUSED: "lost session"}, b"gone") if not attempt else None
    )
    assert [r.attempt for r in gym.collect(rows(3))] == [1, 1, 1]
    said = [line for line in capsys.readouterr().err.splitlines() if "begin anew" in line]
    assert len(said) == 1
    assert said[0].startswith("unbroken: rollouts whose sessions are refused begin anew, 0-")
    assert said[0].endswith(" first: lost session: gone")


def test_after_a_lost_session_the_agent_begins_anew(stack: Stack, gym: Gym) -> None:
    """The resources server is another one since: what the agent has written down leads nowhere."""

    def forgetful(rollout: str, number: int) -> None:
        if number == 2:
            stack.resources.kept.clear()

    stack.model.before = forgetful
    (found,) = gym.collect(rows(1))
    assert (found.attempt, found.outcome) == (1, "completed")
    assert stack.model.calls == {"0-0": 4}  # two, and two again
    assert found.response is not None
    assert found.response["response"]["state"]["steps"] == 2


def test_a_later_attempt_of_a_process_that_was_killed_is_caught_up_with(stack: Stack, gym: Gym) -> None:
    stack.agent.instead = lambda rollout, attempt: (
        (409, {words.REFUSED: "stale attempt"}, b"older") if attempt < 7 else None
    )
    (found,) = gym.collect(rows(1))
    assert (found.attempt, found.outcome) == (7, "completed")


def test_a_server_that_is_down_is_waited_for(stack: Stack) -> None:
    agent = Agent("late", resources=stack.resources, model=stack.model)
    port = agent.port
    with Gym({**stack.urls, "late": agent.url}, agent="late", token=TOKEN, patience=300) as gym:
        gym.collect(rows(1))
        agent.stop()
        ids = gym.submit(rows(2))
        again = Agent("late", resources=stack.resources, model=stack.model, port=port)
        found = gym.take(2)
        assert sorted(r.id for r in found) == ids
        assert {r.outcome for r in found} == {"completed"}
        again.stop()


def test_it_is_not_waited_for_without_end(stack: Stack) -> None:
    agent = Agent("gone", resources=stack.resources, model=stack.model)
    with Gym({**stack.urls, "gone": agent.url}, agent="gone", token=TOKEN, patience=0.2) as gym:
        gym.collect(rows(1))
        agent.stop()
        with pytest.warns(RolloutWarning, match="could not be reached for 0.2 s"):
            (found,) = gym.collect(rows(1))
    assert (found.outcome, found.reward) == ("unresolved", None)


def test_take_gives_what_is_done_and_once(stack: Stack, gym: Gym) -> None:
    ids = gym.submit(rows(3))
    first = gym.take(2)
    second = gym.take(1)
    assert sorted(r.id for r in (*first, *second)) == ids
    with pytest.raises(ConfigError, match="1 rollouts are to be taken and 0 are there"):
        gym.take(1)


def test_take_with_a_timeout_gives_what_is_there(stack: Stack, gym: Gym) -> None:
    go_on = threading.Event()
    stack.model.before = lambda rollout, number: None if rollout != "0-1" else _wait(go_on)
    gym.submit(rows(2))
    assert [r.id for r in gym.take(1)] == ["0-0"]
    assert gym.take(1, timeout=0.05) == []
    go_on.set()
    assert [r.id for r in gym.take(1)] == ["0-1"]


def _wait(event: threading.Event) -> None:
    event.wait(600)


def test_a_row_may_name_its_agent(stack: Stack) -> None:
    other = Agent("other", resources=stack.resources, model=stack.model)
    with Gym({**stack.urls, "other": other.url}, token=TOKEN) as gym:
        with pytest.raises(ConfigError, match="A row names no agent"):
            gym.collect(rows(1))
        with pytest.raises(ConfigError, match="'res' is no agent here"):
            gym.collect(rows(1), agent="res")
        gym.collect([{"prompt": 1, "agent_ref": {"type": "responses_api_agents", "name": "other"}}])
        gym.collect(rows(1), agent="agent")
    assert (len(other.runs), len(stack.agent.runs)) == (1, 1)
    other.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"sync_timeout": -1}, "sync_timeout=-1"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"agent": "nobody"}, "no server 'nobody'"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Gym({"res": "http://127.0.0.1:1"}, token=TOKEN, **options)


def test_without_servers_there_is_no_gym() -> None:
    with pytest.raises(ConfigError, match="no servers"):
        Gym({}, token=TOKEN)


def test_what_servers_keep_can_be_looked_at(stack: Stack, gym: Gym) -> None:
    gym.collect(rows(2))
    assert {name: sorted(s.id for s in found) for name, found in gym.sessions().items()} == {
        "agent": ["0-0", "0-1"], "res": ["0-0", "0-1"],
    }  # fmt: skip
    assert set(gym.digests()) == {"res"}
    assert gym.digests()["res"]["0-0"] != gym.digests()["res"]["0-1"]
    assert gym.status()["policy"].role == "model"


CONFIG = {
    "head_server": {"host": "127.0.0.1", "port": 11000},
    "res": {"resources_servers": {"counter": {"host": "0.0.0.0", "port": 12001, "domain": "agent"}}},
    "agent": {"responses_api_agents": {"simple_agent": {"host": "10.0.0.7", "port": 12002}}},
    "policy": {"responses_api_models": {"vllm_model": {"host": "10.0.0.8", "port": 12003}}},
}


def test_servers_are_found_in_the_configuration_of_nemo_gym() -> None:
    with Gym.from_config(CONFIG, leave_out=["policy"], token=TOKEN) as gym:
        found = {name: remote.url for name, remote in gym.coordinator.fleet.remotes.items()}
    assert found == {"res": "http://127.0.0.1:12001", "agent": "http://10.0.0.7:12002"}
    with pytest.raises(ConfigError, match="no server in this configuration"):
        Gym.from_config({"head_server": {}}, token=TOKEN)
    with pytest.raises(ConfigError, match="res has no host or port"):
        Gym.from_config({"res": {"resources_servers": {"counter": {"host": "h"}}}}, token=TOKEN)


@pytest.mark.parametrize(
    ("host", "url"), [("fd00::7", "http://[fd00::7]:1"), ("::", "http://[::1]:1"), ("node", "http://node:1")]
)
def test_an_address_of_ipv6_stands_in_brackets(host: str, url: str) -> None:
    assert servers_of({"res": {"resources_servers": {"x": {"host": host, "port": 1}}}}) == {"res": url}


def test_servers_are_found_by_the_head_server() -> None:
    class Head(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(404)
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            # As FastAPI gives a text: YAML in a JSON string. JSON is YAML.
            self.wfile.write(json.dumps(json.dumps(CONFIG)).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Head) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            with Gym.from_head(address, token=TOKEN) as gym:
                assert sorted(gym.coordinator.fleet.remotes) == ["agent", "policy", "res"]
            with (
                Gym({"head": address}, token=TOKEN) as gym,
                pytest.raises(ConfigError, match=r"is NeMo Gym's head server.*from_head"),
            ):
                gym.status()
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(ServerMissing, match="head server"):
        Gym.from_head(address, token=TOKEN)


def test_a_session_moves_with_its_state(stack: Stack, gym: Gym) -> None:
    target = Resources("res")
    stack.resources.put("s", {"total": 5, "steps": 2})
    gym.migrate("s", source="res", target=target.url)
    assert "s" not in stack.resources.kept
    assert target.digest(target.kept["s"]) == '{"total": 5, "steps": 2}'
    with pytest.raises(ConfigError, match="has the session s already"):
        gym.migrate("s", source="res", target=target.url)
    with pytest.raises(ConfigError, match="no server 'nowhere'"):
        gym.migrate("s", source="res", target="nowhere")
    target.stop()


def test_a_session_that_is_not_received_stays_and_may_move_later(stack: Stack, gym: Gym) -> None:
    target = Resources("res")
    stack.resources.put("s", {"total": 5, "steps": 2})
    target.spoilt.add("s")
    with pytest.raises(ServerMissing, match="cannot be read"):
        gym.migrate("s", source="res", target=target.url)
    assert "s" in stack.resources.kept
    assert "s" not in target.kept
    target.spoilt.clear()
    gym.migrate("s", source="res", target=target.url)
    assert "s" in target.kept
    target.stop()


def test_an_interrupted_collection_is_given_up(
    stack: Stack, gym: Gym, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(ids: list[str]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gym.coordinator, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            gym.collect(rows(2))
    assert [r.id for r in gym.collect(rows(1))] == ["1-0"]
    assert gym.coordinator.ledger.kept() == []


def test_an_agent_that_hangs_does_not_keep_the_next_collection_from_being_sent(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while all threads wait for an agent that hangs, and more rollouts than threads are to be sent."""
    hung, never = threading.Event(), threading.Event()

    def hang(rollout: str, attempt: int) -> Reply | None:
        if rollout.startswith("0-"):
            hung.set()
            never.wait(600)
            raise Crash
        return None

    def interrupt(ids: list[str]) -> None:
        assert hung.wait(300)
        raise KeyboardInterrupt

    stack.agent.instead = hang
    with Gym(stack.urls, token=TOKEN, concurrency=1) as gym:
        with monkeypatch.context() as patched:
            patched.setattr(gym.coordinator, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                gym.collect(rows(3))
        ids = gym.submit(rows(2))
        assert [r.id for r in gym.take(2, timeout=300)] == ids
    never.set()
    assert sorted({rollout for rollout, _ in stack.agent.runs}) == ["0-0", *ids]


def test_the_newer_of_two_trainers_is_obeyed(stack: Stack, tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "first", every=1, quiet=True)
    with Gym(stack.urls, token=TOKEN) as first, Gym(stack.urls, token=TOKEN) as second:
        run.track(gym=first)
        steps = iter(run.steps(5))
        next(steps)
        second.collect(rows(1))
        with pytest.raises(Fenced):
            for _ in steps:
                pass
        assert [r.outcome for r in second.collect(rows(1))] == ["completed"]


def test_a_trainer_that_was_fenced_off_sends_nothing_and_hands_out_nothing(stack: Stack) -> None:
    go_on = threading.Event()
    with Gym(stack.urls, token=TOKEN) as first, Gym(stack.urls, token=TOKEN) as second:
        first.collect(rows(1))
        stack.model.before = lambda rollout, number: _wait(go_on)
        (begun,) = first.submit(rows(1))
        assert begun == "1-0"
        second.coordinator.connect()
        go_on.set()
        with pytest.raises(Fenced, match="Another trainer has taken over the server agent"):
            first.take(1)
        runs = len(stack.agent.runs)
        with pytest.raises(Fenced):
            first.collect(rows(1))
        assert len(stack.agent.runs) == runs


def test_two_threads_that_begin_at_once_do_not_fence_each_other_off(stack: Stack, gym: Gym) -> None:
    both = threading.Barrier(2)
    failures: list[BaseException] = []

    def collect(prompt: int) -> None:
        both.wait(300)
        try:
            gym.collect([{"prompt": prompt}], policy_version="v1")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=collect, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert failures == []
    assert [server.asked.count("adopt") for server in stack.servers] == [1, 1, 1]
    assert stack.model.policies == ["v1"]


@pytest.mark.parametrize("tracked", [False, True])
def test_servers_that_are_started_together_with_the_training_are_waited_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tracked: bool
) -> None:
    """The server begins to listen once it was said that it is waited for, and that is said once."""
    port = stack.model.port
    stack.model.stop()
    said: list[str] = []

    class Said(io.StringIO):
        def write(self, text: str) -> int:
            if "waiting for" in text:
                said.append(text)
                stack.model = stack.agent.model = Model("policy", port=port)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Said())
    with Gym(stack.urls, token=TOKEN, patience=300) as gym:
        run = unbroken.Run(tmp_path / "run", every=1, quiet=True)
        if tracked:
            run.track(gym=gym)
            assert next(iter(run.steps(1))) == 0
        assert [r.outcome for r in gym.collect(rows(1))] == ["completed"]
        run.close()
    assert said == ["unbroken: waiting for policy, up to 300 s\n"]


def test_a_server_that_never_comes_is_not_waited_for_without_end(stack: Stack) -> None:
    stack.model.stop()
    with Gym(stack.urls, token=TOKEN, patience=0.3) as gym, pytest.raises(ServerMissing, match="policy"):
        gym.collect(rows(1))
    stack.model = Model("policy")


def test_a_rollout_that_its_agent_has_begun_anew_is_not_dropped(stack: Stack, gym: Gym) -> None:
    """Between the refusal and a drop another attempt may have begun, which the drop would take away."""

    def forgetful(rollout: str, number: int) -> None:
        if number == 2:
            stack.resources.kept.clear()

    stack.model.before = forgetful
    (found,) = gym.collect(rows(1))
    assert (found.attempt, found.outcome) == (1, "completed")
    assert "drop" not in stack.agent.asked
