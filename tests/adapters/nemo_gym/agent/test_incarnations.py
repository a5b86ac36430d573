"""An agent that has lost something of a rollout never goes on over what other servers keep of it: it begins anew."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row
from tests.adapters.nemo_gym.server.tiny import Running, running
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Committed, Drop, Status
from unbroken.adapters.nemo_gym.frames import HEADER, MAGIC


async def adding(client: Any, request: Any) -> Any:
    """Adds what the model says to the counter of a session. `now` is in the prompt."""
    now = request[1].get("now", 0) if PROMPT is None else PROMPT
    await client.post("res", "/seed_session", json={})
    said: list[int] = []
    for turn in range(3):
        answer = await client.post(
            "model", "/v1/responses", json={"turn": turn, "now": now, "said": list(said)}
        )
        said.append((await answer.json())["say"])
        await client.post("res", "/add", json={"count": said[-1]})
    verified = await (await client.post("res", "/verify", json={"expected": sum(said)})).json()
    return {"reward": verified["reward"], "said": said}


PROMPT: int | None = None
"""What an agent that is not deterministic has in its prompt."""


class World:
    """A resources server with its log, and a model whose answers grow. The first verification is never answered."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.reached = asyncio.Event()
        self.held = True
        self._cookie = ""
        self._numbers = itertools.count(1)

    async def __call__(self, made: SimpleNamespace) -> Said:
        if made.server == "model":
            return Said({"say": next(self._numbers) * 10})
        if made.path == "/verify" and self.held:
            self.held = False
            self.reached.set()
            await asyncio.Event().wait()
        answer = await self.server.post(
            made.path,
            made.json,
            cookie="" if made.path == "/seed_session" else self._cookie,
            rollout=made.headers[words.ROLLOUT],
            attempt=int(made.headers[words.ATTEMPT]),
            call=made.headers[words.CALL],
        )
        if made.path == "/seed_session":
            self._cookie = answer.cookie
        headers = {words.REFUSED: answer.refused} if answer.refused else {}
        return Said(status=answer.status, raw=answer.body, headers=headers)

    def counters(self) -> list[int]:
        return list(self.server.server.session_id_to_counter.values())


@asynccontextmanager
async def interrupted(tmp_path: Path) -> AsyncGenerator[World]:
    """Give a world in which an agent has ended while its verification was under way; its log lies in `agent`."""
    async with running(tmp_path / "res") as server:
        world = World(server)
        toy = Toy(tmp_path / "agent", adding, world)
        asked = asyncio.create_task(toy.run(row()))
        await world.reached.wait()
        await toy.agent.close()
        await asked
        assert world.counters() == [60]
        yield world


def spoil(directory: Path, what: bytes, *, at: int = 0) -> None:
    log = directory / "log"
    content = bytearray(log.read_bytes())
    content[content.index(what) + at] ^= 1
    log.write_bytes(bytes(content))


def test_an_intact_log_goes_on_over_the_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with interrupted(tmp_path) as world:
            toy = Toy(tmp_path / "agent", adding, world)
            reply = await toy.run(row(), attempt=1)
            assert json.loads(reply.body) == {"reward": 1.0, "said": [10, 20, 30]}
            assert world.counters() == [60]
            await toy.agent.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("labelled", [True, False])
def test_a_damaged_answer_lets_the_rollout_begin_anew_in_a_session_of_its_own(
    tmp_path: Path, labelled: bool
) -> None:
    """Where even the label is spoilt nobody knows whose line it was: all that are not over begin anew."""

    async def scenario() -> None:
        async with interrupted(tmp_path) as world:
            spoil(tmp_path / "agent", b'{"say": 20}', at=8)
            if not labelled:
                log = tmp_path / "agent" / "log"
                content = bytearray(log.read_bytes())
                start = content.rindex(MAGIC, 0, content.index(b'{"say": 20}'[:8] + b"3"))
                content[start + len(MAGIC) : start + HEADER] = bytes(HEADER - len(MAGIC))
                log.write_bytes(bytes(content))
            toy = Toy(tmp_path / "agent", adding, world)
            recovery = toy.journal.recovery
            assert [(one.id, one.tier) for one in recovery.listed] == [("r", "fresh")]
            assert "begins anew" in " ".join(recovery.listed[0].reasons)
            reply = await toy.run(row(), attempt=1)
            assert json.loads(reply.body) == {"reward": 1.0, "said": [40, 50, 60]}
            assert sorted(world.counters()) == [60, 150]
            await toy.agent.close()

            again = Toy(
                tmp_path / "agent", adding, world
            )  # what it has done since is not forgotten once more
            assert not again.journal.recovery.listed
            assert (await again.run(row(), attempt=1)).body == reply.body
            await again.agent.close()

    asyncio.run(scenario())


def test_damage_leaves_a_result_that_was_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "res") as server:
            world = World(server)
            world.held = False
            toy = Toy(tmp_path / "agent", adding, world)
            reply = await toy.run(row())
            await toy.agent.close()
            spoil(tmp_path / "agent", b'{"say": 20}', at=8)
            again = Toy(tmp_path / "agent", adding, world)
            assert [(one.id, one.tier) for one in again.journal.recovery.listed] == [("r", "older")]
            assert (await again.run(row(), attempt=1)).body == reply.body
            assert not again.calls
            await again.agent.close()

    asyncio.run(scenario())


def test_an_agent_whose_log_is_gone_begins_in_a_session_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with interrupted(tmp_path) as world:
            toy = Toy(tmp_path / "another", adding, world)
            reply = await toy.run(row(), attempt=1)
            assert json.loads(reply.body) == {"reward": 1.0, "said": [40, 50, 60]}
            assert sorted(world.counters()) == [60, 150]
            await toy.agent.close()

    asyncio.run(scenario())


def test_an_agent_that_is_not_deterministic_gets_no_reward_over_its_old_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with interrupted(tmp_path) as world:
            monkeypatch.setitem(globals(), "PROMPT", 1)
            toy = Toy(tmp_path / "agent", adding, world)
            refused = await toy.run(row(), attempt=1)
            assert (refused.status, refused.header(words.REFUSED)) == (503, "lost session")
            said = json.loads(refused.body)
            assert "not asked for again" in said["error"]
            assert "begins afresh" in said["error"]
            assert "reward" not in said
            reply = await toy.run(row(), attempt=2)
            assert json.loads(reply.body) == {"reward": 1.0, "said": [70, 80, 90]}
            assert 240 in world.counters()
            await toy.agent.close()

    asyncio.run(scenario())


def test_a_call_in_doubt_that_is_not_made_again_counts_as_done(tmp_path: Path) -> None:
    """The environment may have carried it out, and what comes after it in another run does not know of it."""
    prompt = 0

    async def act(client: Any, request: Any) -> Any:
        await client.post("res", "/tool", json={"now": prompt})
        return {"reward": 1.0}

    async def scenario() -> None:
        nonlocal prompt
        reached = asyncio.Event()

        async def answering(made: SimpleNamespace) -> Said:
            if not prompt:
                reached.set()
                await asyncio.Event().wait()
            return Said({})

        toy = Toy(tmp_path, act, answering)
        asked = asyncio.create_task(toy.run(row()))
        await reached.wait()
        await toy.agent.close()
        await asked
        prompt = 1
        again = Toy(tmp_path, act, answering)
        assert (await again.run(row(), attempt=1)).header(words.REFUSED) == "lost session"
        assert (await again.run(row(), attempt=2)).status == 200
        await again.agent.close()

    asyncio.run(scenario())


def test_a_rollout_that_begins_again_has_calls_of_other_names_whatever_lies_between(tmp_path: Path) -> None:
    async def act(client: Any, request: Any) -> Any:
        await client.post("res", "/seed_session", json={})
        return {"reward": 1.0}

    async def answering(made: SimpleNamespace) -> Said:
        return Said({})

    async def scenario() -> None:
        toy = Toy(tmp_path, act, answering)
        names: list[str] = []

        async def begun(attempt: int) -> None:
            assert (await toy.run(row(), attempt=attempt)).status == 200
            names.append(toy.calls[-1].headers[words.CALL])
            await toy.control("drop", Drop(rollouts=["r"]))

        await begun(0)
        await begun(1)
        await toy.control("committed", Committed(mark=toy.journal.mark))
        await begun(2)
        toy.journal._rewrite()
        await toy.agent.close()
        toy = Toy(tmp_path, act, answering)
        await begun(3)
        await toy.agent.close()
        assert len(set(names)) == 4

    asyncio.run(scenario())


async def echoing(client: Any, request: Any) -> Any:
    answer = await client.post("model", "/v1/responses", json={"prompt": request[1]["prompt"]})
    return {"reward": 1.0, "said": (await answer.json())["prompt"]}


def test_another_row_under_the_same_id_is_another_rollout(tmp_path: Path) -> None:
    async def answering(made: SimpleNamespace) -> Said:
        return Said(made.json)

    async def scenario() -> None:
        toy = Toy(tmp_path, echoing, answering)
        first = await toy.run(row(prompt="a", _unbroken_policy_version=1), attempt=0)
        assert json.loads(first.body)["said"] == "a"
        same = await toy.run(row(prompt="a", _unbroken_policy_version=2), attempt=1)
        assert (same.body, same.header(words.REPLAYED)) == (first.body, "1")
        other = await toy.run(row(prompt="b"), attempt=1)
        assert (json.loads(other.body)["said"], other.header(words.REPLAYED)) == ("b", "")
        names = {made.headers[words.CALL].split("#")[0] for made in toy.calls}
        assert len(names) == 2
        await toy.agent.close()

        again = Toy(tmp_path, echoing, answering)  # the row is in the log
        assert (await again.run(row(prompt="b"), attempt=1)).body == other.body
        assert not again.calls
        stale = await again.run(row(prompt="c"), attempt=0)
        assert stale.header(words.REFUSED) == "stale attempt"
        await again.agent.close()

    asyncio.run(scenario())


def test_another_row_takes_a_running_rollout_over_also_under_the_same_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        reached = asyncio.Event()

        async def answering(made: SimpleNamespace) -> Said:
            if made.json["prompt"] == "a":
                reached.set()
                await asyncio.Event().wait()
            return Said(made.json)

        toy = Toy(tmp_path, echoing, answering)
        old = asyncio.create_task(toy.run(row(prompt="a"), attempt=1))
        await reached.wait()
        new = await toy.run(row(prompt="b"), attempt=1)
        assert json.loads(new.body)["said"] == "b"
        superseded = await old
        assert (superseded.status, superseded.header(words.REFUSED)) == (409, "stale attempt")
        assert b"Another row" in superseded.body
        status: Status = await toy.control("status")
        assert status.rollouts == 1
        await toy.agent.close()

    asyncio.run(scenario())
