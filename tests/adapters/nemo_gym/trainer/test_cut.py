"""One moment for all servers: in their order, with everybody released, whatever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pytest

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.trainer.cut import cut
from unbroken.adapters.nemo_gym.trainer.fleet import Fleet
from unbroken.errors import Fenced, ServerMissing

from .stand_in import TOKEN, Stack


@pytest.fixture
def fleet(stack: Stack) -> Iterator[Fleet]:
    found = Fleet(stack.urls, token=TOKEN, timeout=300, patience=300)
    found.adopt("run")
    yield found
    found.close()


def test_agents_stop_first_and_go_on_last(
    stack: Stack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for server in stack.servers:
        for operation in ("quiesce", "export", "release"):
            done = getattr(server, f"do_{operation}")

            def tell(given: object, what: str = f"{operation} {server.name}", done: object = done) -> object:
                order.append(what)
                return done(given)  # type: ignore[operator]

            monkeypatch.setattr(server, f"do_{operation}", tell)
    assert set(cut(fleet.by_role, {}, timeout=300)) == {"agent", "policy", "res"}
    assert order[:3] == ["quiesce agent", "quiesce policy", "quiesce res"]
    assert sorted(order[3:6]) == ["export agent", "export policy", "export res"]
    assert order[6:] == ["release res", "release policy", "release agent"]


def test_twenty_cuts_under_load_are_each_of_one_moment(stack: Stack, fleet: Fleet) -> None:
    """Four clients count up; what a cut holds is what was answered before it, and nothing half-way."""
    answered: dict[str, int] = dict.fromkeys(["a", "b", "c", "d"], 0)
    over = threading.Event()
    failures: list[BaseException] = []
    for session in answered:
        stack.resources.put(session, {"total": 0, "steps": 0})

    def client(session: str) -> None:
        try:
            while not over.is_set():
                reply = httpx.post(
                    f"{stack.resources.url}/step",
                    json={"session": session, "add": 1},
                    timeout=300,
                    trust_env=False,
                )
                assert reply.status_code == 200
                answered[session] += 1
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    clients = [threading.Thread(target=client, args=(session,)) for session in answered]
    for thread in clients:
        thread.start()
    try:
        for _ in range(20):
            before = dict(answered)
            part = cut(fleet.by_role, {}, timeout=300)["res"]
            after = dict(answered)
            assert part.status.phase == "quiesced"
            for record in part.exported.records:
                found = records.session(record.data)
                assert found.state is not None
                steps = json.loads(found.state.data)["steps"]
                # A client counts an answer only after it came, so it may be one behind.
                assert before[record.key] <= steps <= after[record.key] + 1
    finally:
        over.set()
        for thread in clients:
            thread.join()
    assert failures == []
    assert {k: json.loads(r.state.data)["steps"] for k, r in stack.resources.kept.items()} == answered


def test_who_does_not_answer_is_named_and_the_others_go_on(stack: Stack, fleet: Fleet) -> None:
    stack.model.hearing.clear()
    with pytest.raises(ServerMissing, match="policy did not answer 'quiesce' in time") as found:
        cut(fleet.by_role, {}, timeout=4)
    assert found.value.servers == ("policy",)
    assert stack.agent.phase == "open"
    assert stack.resources.phase == "open"
    assert "quiesce" not in stack.resources.asked
    stack.model.hearing.set()
    assert set(cut(fleet.by_role, {}, timeout=300)) == {"agent", "policy", "res"}


def test_calls_that_take_too_long_are_named(stack: Stack, fleet: Fleet) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def before(*_: object) -> None:
        arrived.set()
        go_on.wait(300)

    stack.model.before = before
    body = {"rollout": "r-1", "prompt": 1, "turn": 0, "weight": 0}
    thread = threading.Thread(
        target=lambda: httpx.post(f"{stack.model.url}/v1/responses", json=body, timeout=300, trust_env=False)
    )
    thread.start()
    assert arrived.wait(300)
    with pytest.raises(ServerMissing, match=r"Under way: r-1 /v1/responses"):
        cut(fleet.by_role, {}, timeout=4)
    assert [server.phase for server in stack.servers] == ["open", "open", "open"]
    go_on.set()
    thread.join()


def test_an_interruption_releases_all(stack: Stack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet.get("res"), "export", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        cut(fleet.by_role, {}, timeout=300)
    assert [server.phase for server in stack.servers] == ["open", "open", "open"]


def test_a_trainer_that_is_replaced_during_its_cut_takes_nothing(stack: Stack, fleet: Fleet) -> None:
    """Its drain comes to nothing when a newer one adopts the servers; what it has closed the newer one opens."""
    arrived, go_on = threading.Event(), threading.Event()

    def before(*_: object) -> None:
        arrived.set()
        go_on.wait(300)

    stack.model.before = before
    body = {"rollout": "r-1", "prompt": 1, "turn": 0, "weight": 0}
    call = threading.Thread(
        target=lambda: httpx.post(f"{stack.model.url}/v1/responses", json=body, timeout=300, trust_env=False)
    )
    call.start()
    assert arrived.wait(300)
    failed: list[BaseException] = []

    def save() -> None:
        try:
            cut(fleet.by_role, {}, timeout=300)
        except Fenced as error:
            failed.append(error)

    draining = threading.Event()
    stack.model.before_control = lambda operation, _: draining.set() if operation == "quiesce" else None
    older = threading.Thread(target=save)
    older.start()
    assert draining.wait(300)
    newer = Fleet(stack.urls, token=TOKEN, timeout=300, patience=300)
    newer.adopt("another run")
    go_on.set()
    older.join(300)
    call.join()
    assert len(failed) == 1
    assert "export" not in stack.model.asked
    assert set(cut(newer.by_role, {}, timeout=300)) == {"agent", "policy", "res"}
    assert [server.phase for server in stack.servers] == ["open", "open", "open"]
    assert all(server.door.is_open for server in stack.servers)
    newer.close()


def _interrupt(**_: object) -> None:
    raise KeyboardInterrupt


def test_a_server_that_another_trainer_has_stops_the_cut(stack: Stack, fleet: Fleet) -> None:
    other = Fleet(stack.urls, token=TOKEN, timeout=300, patience=300)
    other.adopt("another run")
    with pytest.raises(Fenced):
        cut(fleet.by_role, {}, timeout=300)
    cut(other.by_role, {}, timeout=300)
    other.close()


def test_who_cannot_be_opened_again_is_named_beside_any_error(
    stack: Stack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet.get("res"), "export", _interrupt)
    model = fleet.get("policy")

    def gone(*, timeout: float) -> None:
        raise ServerMissing("The server policy did not answer 'release'.", servers=["policy"])

    monkeypatch.setattr(model, "release", gone)
    with pytest.raises(KeyboardInterrupt):
        cut(fleet.by_role, {}, timeout=300)
    assert "not open again: The server policy did not answer 'release'" in capsys.readouterr().err


def test_of_several_errors_none_is_hidden(
    stack: Stack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(**_: object) -> None:
        raise ServerMissing("The disk of the agent is full.", servers=["agent"])

    def fenced(**_: object) -> None:
        raise Fenced("res: another trainer took this server over.")

    monkeypatch.setattr(fleet.get("agent"), "export", lost)
    monkeypatch.setattr(fleet.get("res"), "export", fenced)
    with pytest.raises(Fenced):
        cut(fleet.by_role, {}, timeout=300)
    assert "The disk of the agent is full." in capsys.readouterr().err
