"""Sixteen clients at work while a training saves twenty times: each checkpoint is of one moment, and nobody notices.

Half of the clients call the resources server themselves and know what they were answered. The others ask the agent for rollouts, whose
two sides have to agree: what the agent was told is what the environment has done.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.nemo_gym.stack import PATIENCE, Stack, counter
from unbroken import Every, Run
from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.records import Answer, Call, SessionRecord
from unbroken.adapters.nemo_gym.trainer.payload import Payload, read_payload
from unbroken.errors import ServerMissing
from unbroken.nemo_gym import Gym
from unbroken.repo.repository import Repository

CUTS = 20
CLIENTS = 8
"""Of each kind."""
SOON = 10.0
"""Seconds after which a call that is held counts as hanging. A cut that nobody keeps waiting takes some hundredths of one."""


class Clients:
    """Threads that work until they are told to stop. What went wrong is raised then."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    @property
    def working(self) -> bool:
        return not self._over.is_set()

    def add(self, work: Any, *arguments: Any) -> None:
        def body() -> None:
            try:
                while self.working:
                    work(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised in `stop`
                self._failures.append(error)

        self._threads.append(threading.Thread(target=body, daemon=True))
        self._threads[-1].start()

    def await_progress(self, adding: list[Adding]) -> None:
        """Return once every client was answered once more, or one has failed."""
        seen = [client.answered for client in adding]
        while not self._failures and any(c.answered == s for c, s in zip(adding, seen, strict=True)):
            time.sleep(0.001)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]


class Adding:
    """A client that has a session and adds to it: 1, 2, 3, … It counts what it has sent and what it was answered."""

    def __init__(self, address: str, start: int) -> None:
        self._http = httpx.Client(base_url=address, timeout=PATIENCE)
        self.start = start
        seeded = self._http.post("/seed_session", json={"initial_count": start})
        assert seeded.status_code == 200
        self.sent = self.answered = 0

    def add(self) -> None:
        self.sent += 1
        answer = self._http.post("/increment_counter", json={"count": self.sent})
        assert (answer.status_code, answer.json()) == (200, {"success": True})
        self.answered += 1

    def close(self) -> int:
        answer = self._http.post("/get_counter_value", json={})
        self._http.close()
        return int(answer.json()["count"])


class Asking:
    """A client that asks the agent for one rollout after the other, and looks at the reward."""

    def __init__(self, stack: Stack, number: int) -> None:
        self._stack = stack
        self._numbers = itertools.count()
        self._name = f"client-{number}"
        self.done = 0

    def ask(self) -> None:
        row = {**counter(1, 2, 3, start=self.done), "_ng_rollout_id": f"{self._name}-{next(self._numbers)}"}
        assert self._stack.run(row)["reward"] == 1.0
        self.done += 1


def test_every_checkpoint_is_of_one_moment(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack, Gym(stack.addresses, agent="agent", sync_timeout=PATIENCE) as gym:
        run = Run(root=tmp_path / "runs", job="train", every=Every(steps=1), keep_last=2 * CUTS, quiet=True)
        run.track(gym=gym)
        adding = [Adding(stack.addresses["res"], start=100 * number) for number in range(CLIENTS)]
        asking = [Asking(stack, number) for number in range(CLIENTS)]
        clients = Clients()
        before: dict[int, list[int]] = {}
        after: dict[int, list[int]] = {}
        rewards: list[float | None] = []
        step = 0
        place = tmp_path / "runs"
        run.scratch(before, after, clients, rewards)
        for step in run.steps(1000):
            # A save is made between two steps: it is number `step`.
            after[step] = [client.sent for client in adding]
            if step == 0:
                for client in adding:
                    clients.add(client.add)
                for other in asking:
                    clients.add(other.ask)
            gym.submit([counter(step, step + 1, start=step)])
            if step % 5 == 4:
                rewards += [rollout.reward for rollout in gym.take(5)]
            clients.await_progress(adding)
            before[step + 1] = [client.answered for client in adding]
            if (
                step > CUTS
                and all(client.done for client in asking)
                and len(Repository.open(place, "train").commits()) > CUTS
            ):
                break  # a step that is done while a save is being written has none
        clients.stop()
        rewards += [rollout.reward for rollout in gym.take(gym.outstanding)]
        run.close()
        sums = [client.close() for client in adding]
    assert rewards == [1.0] * (step + 1)
    assert sums == [c.start + c.answered * (c.answered + 1) // 2 for c in adding], "no call was done twice"
    assert all(client.done > 0 for client in asking)
    repository = Repository.open(place, "train")
    cuts = [commit for commit in repository.commits() if 0 < commit.step <= step]
    assert len(cuts) >= CUTS
    in_the_middle = 0
    for cut in cuts:
        payload = read_payload(repository.load(cut).components["gym"])
        check_adding(payload, adding, before[cut.step], after[cut.step])
        in_the_middle += check_rollouts(payload)
    assert in_the_middle > 0, "rollouts were under way at the cuts"


def sessions_in(payload: Payload) -> list[SessionRecord]:
    return [records.session(data) for data in payload.servers["res"].records.values()]


def total_of(calls: list[Call]) -> int:
    """Return what the counter of a session has to be after these calls."""
    total = 0
    for call in calls:
        arguments = json.loads(call.arguments or b"{}")
        if call.path == "/seed_session":
            total = arguments.get("initial_count", 0)
        elif call.path == "/increment_counter":
            total += arguments["count"]
        elif call.path == "/get_counter_value":
            assert json.loads(call.result) == {"count": total}
    return total


def check_whole(session: SessionRecord) -> None:
    """Check that a session has each of its calls once, and the state that they lead to."""
    assert [call.revision for call in session.calls] == list(range(1, session.revision + 1))
    assert all(call.status == 200 for call in session.calls)
    assert session.status == "open" and session.state is not None
    assert session.state_revision == session.revision
    assert held(session) == total_of(session.calls)


def held(session: SessionRecord) -> int:
    assert session.state is not None and session.state.form == "json"
    (value,) = json.loads(session.state.data).values()
    assert isinstance(value, int)
    return value


def check_adding(payload: Payload, clients: list[Adding], before: list[int], after: list[int]) -> None:
    """Check that a checkpoint has all that was answered before it, and nothing that was sent after it."""
    own = {s.calls[0].arguments: s for s in sessions_in(payload) if not s.rollout}
    assert len(own) == len(clients)
    total = 0
    for client, answered, sent in zip(clients, before, after, strict=True):
        (session,) = [
            s for s in own.values() if json.loads(s.calls[0].arguments)["initial_count"] == client.start
        ]
        check_whole(session)
        added = [json.loads(call.arguments)["count"] for call in session.calls[1:]]
        assert added == list(range(1, len(added) + 1)), "each once, in order"
        assert answered <= len(added) <= sent
        total += held(session) - client.start
    assert total == sum(json.loads(c.arguments)["count"] for s in own.values() for c in s.calls[1:])


def check_rollouts(payload: Payload) -> int:
    """Check that agent and environment agree; return how many rollouts were under way."""
    by_rollout: dict[str, list[SessionRecord]] = {}
    for session in sessions_in(payload):
        if session.rollout:
            check_whole(session)
            by_rollout.setdefault(session.rollout, []).append(session)
    under_way = 0
    for data in payload.servers["agent"].records.values():
        rollout = records.rollout(data)
        told = [exchanged(answer) for answer in rollout.answers if answer.server == "res"]
        done = [exchanged(call) for session in by_rollout.pop(rollout.id, []) for call in session.calls]
        assert told == done, f"{rollout.id}: nothing is known to one side only"
        under_way += rollout.status == 0 and bool(told)
    assert not by_rollout, "sessions of rollouts that the agent does not know"
    return under_way


def exchanged(one: Answer | Call) -> tuple[str, Mapping[str, Any] | None, bytes]:
    return one.path, json.loads(one.arguments or b"null"), one.result


def test_a_model_that_does_not_answer_bounds_the_cut_and_costs_one_save(tmp_path: Path) -> None:
    """The drain ends after `sync_timeout`, says who is at work, and everybody goes on."""
    with Stack(tmp_path) as stack, Gym(stack.addresses, agent="agent", sync_timeout=SOON) as gym:
        run = Run(root=tmp_path / "runs", job="train", every=Every(steps=1), quiet=True)
        run.track(gym=gym)
        steps = iter(run.steps(10))
        next(steps)
        stack.hold(1)
        gym.submit([counter(2, 3)])
        stack.await_turn(1)
        # A server gives up when nine tenths of that are over, and the last one is for its answer.
        with pytest.raises(
            ServerMissing, match=r"1 calls were still under way after .*policy_model/v1/responses"
        ) as raised:
            next(steps)
        waited = re.search(r"after ([\d.]+) s", str(raised.value))
        assert waited is not None
        assert float(waited[1]) <= 0.9 * SOON
        assert stack.status("agent").phase == stack.status("res").phase == "open"
        stack.let_go(1)
        (rollout,) = gym.take(1, timeout=PATIENCE)
        assert rollout.reward == 1.0
