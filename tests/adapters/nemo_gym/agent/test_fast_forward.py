"""Agents that run again through what they were told, at the level of calls: no server, no port."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Status


async def counting(made: SimpleNamespace) -> Said:
    """A world whose every answer tells the call apart from all others of its rollout."""
    key = made.headers[words.CALL].split("#")[1]
    return Said({"to": made.path, "said": made.json, "call": key}, cookies={"s": "1"})


async def three_turns(client: Any, request: Any) -> Any:
    path, _ = request
    if path == "/v1/responses":
        turns = [
            await (await client.post("model", "/v1/responses", json={"turn": n})).json() for n in range(3)
        ]
        return {"turns": turns}
    seeded = await client.post("res", "/seed_session", json={})
    own = await client.post("agent", "/v1/responses", json={"x": 1}, cookies=seeded.cookies)
    verified = await client.post("res", "/verify", json={"response": await own.json()})
    return {"reward": 1.0, "verified": await verified.json(), "cookie": seeded.cookies["s"].value}


@pytest.mark.parametrize("k", range(5))
def test_answers_that_were_given_are_not_asked_for_again(tmp_path: Path, k: int) -> None:
    async def scenario() -> None:
        undisturbed = Toy(tmp_path / "u", three_turns, counting)
        whole = await undisturbed.run(row())
        assert whole.status == 200
        others = [made.path for made in undisturbed.calls if made.server != "agent"]
        assert others == ["/seed_session", "/v1/responses", "/v1/responses", "/v1/responses", "/verify"]
        await undisturbed.agent.close()

        reached = asyncio.Event()

        async def dying(made: SimpleNamespace) -> Said:
            if sum(m.server != "agent" for m in first.calls) > k:
                reached.set()
                await asyncio.Event().wait()
            return await counting(made)

        first = Toy(tmp_path / "c", three_turns, dying)
        asked = asyncio.create_task(first.run(row()))
        await reached.wait()
        await first.agent.close()
        assert (await asked).header(words.REFUSED) == "closed"

        again = Toy(tmp_path / "c", three_turns, counting)
        (in_doubt,) = again.journal.recovery.in_doubt
        assert in_doubt.path == others[k]
        assert (await again.run(row())).body == whole.body
        assert [made.path for made in again.calls if made.server != "agent"] == others[k:]
        again_first = next(made for made in again.calls if made.server != "agent")
        assert again_first.headers[words.CALL] == in_doubt.id
        assert in_doubt.id in {made.headers[words.CALL] for made in first.calls}
        status: Status = await again.control("status")
        assert status.model_calls == len([path for path in others[k:] if path == "/v1/responses"])
        assert not status.unused
        assert len(again.journal.records["r"].answers) == 6
        digest = again.journal.digest("r")
        await again.agent.close()

        reopened = Toy(tmp_path / "u", three_turns, counting)
        assert reopened.journal.digest("r") == digest
        await reopened.agent.close()

        fresh = Toy(tmp_path / "n", three_turns, counting)  # without the log, all is asked for again
        await fresh.run(row())
        assert len(fresh.calls) == 6
        await fresh.agent.close()

    asyncio.run(scenario())


def test_a_later_attempt_is_given_what_earlier_ones_were_told_also_where_the_row_is_handed_on(
    tmp_path: Path,
) -> None:
    async def act(client: Any, request: Any) -> Any:
        _, given = request
        seeded = await (await client.post("res", "/reset", json=given)).json()
        steps = [
            await (await client.post("res", "/step", json={**given, "action": n})).json() for n in range(3)
        ]
        return {"seeded": seeded, "steps": steps}

    async def scenario() -> None:
        async def dying(made: SimpleNamespace) -> Said:
            if made.path == "/step" and made.json["action"] == 2:
                reached.set()
                await asyncio.Event().wait()
            return Said(f"{made.path} under attempt {made.json['_ng_attempt_index']}")

        async def alive(made: SimpleNamespace) -> Said:
            return Said(f"{made.path} under attempt {made.json['_ng_attempt_index']}")

        reached = asyncio.Event()
        first = Toy(tmp_path, act, dying)
        asked = asyncio.create_task(first.run(row(_unbroken_policy_version="7"), attempt=0))
        await reached.wait()
        await first.agent.close()
        await asked
        again = Toy(tmp_path, act, alive)
        reply = await again.run(row(_unbroken_policy_version="8"), attempt=1)
        assert json.loads(reply.body) == {
            "seeded": "/reset under attempt 0",
            "steps": ["/step under attempt 0", "/step under attempt 0", "/step under attempt 1"],
        }
        assert again.paths() == ["/step"]
        await again.agent.close()

    asyncio.run(scenario())


def test_identical_calls_at_the_same_time_have_answers_of_their_own(tmp_path: Path) -> None:
    async def fan_out(client: Any, request: Any) -> Any:
        answers = await asyncio.gather(
            *(client.post("model", "/v1/responses", json={"same": 1}) for _ in range(4))
        )
        last = await client.post("res", "/tool", json={})
        return {"all": [await answer.json() for answer in answers], "last": await last.json()}

    async def scenario() -> None:
        number = 0

        async def numbered(made: SimpleNamespace) -> Said:
            nonlocal number
            if made.path == "/tool" and not alive:
                reached.set()
                await asyncio.Event().wait()
            number += 1
            return Said(number)

        alive = False
        reached = asyncio.Event()
        first = Toy(tmp_path, fan_out, numbered)
        asked = asyncio.create_task(first.run(row()))
        await reached.wait()
        await first.agent.close()
        await asked
        alive = True
        again = Toy(tmp_path, fan_out, numbered)
        assert json.loads((await again.run(row())).body) == {"all": [1, 2, 3, 4], "last": 5}
        assert again.paths() == ["/tool"]
        await again.agent.close()

    asyncio.run(scenario())


def test_an_agent_that_is_not_the_same_twice_is_found_out(tmp_path: Path) -> None:
    async def random(client: Any, request: Any) -> Any:
        await client.post("model", "/v1/responses", json={"id": str(uuid.uuid4())})
        await client.post("model", "/v1/responses", json={"last": True})
        return {}

    async def scenario() -> None:
        hold = True
        reached = asyncio.Event()

        async def answering(made: SimpleNamespace) -> Said:
            if hold and made.json.get("last"):
                reached.set()
                await asyncio.Event().wait()
            return Said({})

        first = Toy(tmp_path, random, answering)
        asked = asyncio.create_task(first.run(row()))
        await reached.wait()
        await first.agent.close()
        await asked
        hold = False
        again = Toy(tmp_path, random, answering)
        assert (await again.run(row())).status == 200  # nothing but a model was asked: nothing is in the way
        assert again.paths() == ["/v1/responses", "/v1/responses"]
        status: Status = await again.control("status")
        assert status.unused == ("r model /v1/responses",)
        await again.agent.close()

    asyncio.run(scenario())


def test_tokens_and_probabilities_come_back_byte_for_byte_with_their_policy(tmp_path: Path) -> None:
    body = (
        b'{"output": [{"prompt_token_ids": [1,2,  3], "generation_token_ids":[4],'
        b' "generation_log_probs": [-0.10000000000000000555, -1e-9]}]}'
    )

    async def act(client: Any, request: Any) -> Any:
        answer = await client.post("model", "/v1/responses", json={})
        assert await answer.read() == body
        if request[1].get("fail"):
            await client.post("res", "/verify", json={})
        return {}

    async def scenario() -> None:
        async def answering(made: SimpleNamespace) -> Said:
            if made.path == "/verify":
                return Said("broken", 503)
            version = {words.POLICY: "7"} if answers_version else {}
            return Said(raw=body, headers=version)

        answers_version = True
        toy = Toy(tmp_path, act, answering)
        assert (await toy.run(row("a", fail=1))).status == 503
        assert (await toy.run(row("a", fail=1))).status == 503
        assert toy.paths() == ["/v1/responses", "/verify", "/verify"]
        answers_version = False
        assert (await toy.run(row("b", _unbroken_policy_version=6))).header(words.POLICY) == "6"
        assert toy.journal.records["a"].answers[0].policy_version == "7"
        assert toy.journal.records["b"].answers[0].policy_version == "6"
        assert toy.journal.records["b"].answers[0].result == body
        assert (await toy.run(row("b"))).header(words.POLICY) == "6"
        await toy.agent.close()

    asyncio.run(scenario())
