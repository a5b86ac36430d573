"""Single calls of an agent: where they go, what they carry, and what of them is left alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.agent.execution import OWN


def test_a_session_that_has_moved_is_followed_also_after_a_restart(tmp_path: Path) -> None:
    async def act(client: Any, request: Any) -> Any:
        first = await client.post("res", "/tool", json={"n": 1})
        second = await client.post("res", "/tool", json={"n": 2})
        return {"cookies": [answer.cookies["s"].value for answer in (first, second)]}

    async def scenario() -> None:
        hold = True
        reached = asyncio.Event()

        async def answering(made: SimpleNamespace) -> Said:
            if made.url == "http://res":
                return Said(
                    "elsewhere",
                    307,
                    headers={words.MOVED: "http://other:9/", "Location": "http://other:9/tool"},
                )
            if hold and made.json == {"n": 2}:
                reached.set()
                await asyncio.Event().wait()
            return Said("here", cookies={"s": made.url})

        first = Toy(tmp_path, act, answering)
        asked = asyncio.create_task(first.run(row()))
        await reached.wait()
        await first.agent.close()
        await asked
        assert [made.url for made in first.calls] == ["http://res", "http://other:9", "http://other:9"]
        assert len({made.headers[words.CALL] for made in first.calls[:2]}) == 1
        hold = False
        again = Toy(tmp_path, act, answering)
        reply = await again.run(row())
        assert json.loads(reply.body) == {"cookies": ["http://other:9", "http://other:9"]}
        assert [made.url for made in again.calls] == ["http://other:9"]
        await again.run(row("another"))
        assert again.calls[1].url == "http://res"
        await again.agent.close()

    asyncio.run(scenario())


def test_another_redirection_is_followed_under_another_name(tmp_path: Path) -> None:
    async def act(client: Any, request: Any) -> Any:
        return {"status": (await client.post("res", "/tool/", json={"n": 1})).status}

    async def answering(made: SimpleNamespace) -> Said:
        return (
            Said(status=307, headers={"Location": "http://res/tool"})
            if made.path == "/tool/"
            else Said(status=201)
        )

    async def endless(made: SimpleNamespace) -> Said:
        return Said(status=307, headers={"Location": "/round"})

    async def scenario() -> None:
        toy = Toy(tmp_path / "a", act, answering)
        assert json.loads((await toy.run(row())).body) == {"status": 201}
        assert toy.paths() == ["/tool/", "/tool"]
        assert toy.calls[1].json == {"n": 1}
        assert len({made.headers[words.CALL] for made in toy.calls}) == 2
        await toy.agent.close()
        lost = Toy(tmp_path / "b", act, endless)
        assert (await lost.run(row())).status == 503
        await lost.agent.close()

    asyncio.run(scenario())


def test_a_body_that_breaks_off_is_asked_for_again_under_the_same_name(tmp_path: Path) -> None:
    class Broken(Said):
        async def read(self) -> bytes:
            raise ConnectionResetError

    async def act(client: Any, request: Any) -> Any:
        return await (await client.post("res", "/tool", json={})).json()

    async def scenario() -> None:
        async def answering(made: SimpleNamespace) -> Said:
            return Broken() if len(toy.calls) == 1 else Said("whole")

        toy = Toy(tmp_path, act, answering)
        assert json.loads((await toy.run(row())).body) == "whole"
        assert len(toy.calls) == 2
        assert len({made.headers[words.CALL] for made in toy.calls}) == 1
        await toy.agent.close()

    asyncio.run(scenario())


def test_what_is_no_call_of_a_rollout_goes_through_untouched(tmp_path: Path) -> None:
    async def act(client: Any, request: Any) -> Any:
        got = await client.request("res", "/page", "GET")
        metrics = await client.post("res", "/aggregate_metrics", json={})
        return [type(got).__name__, type(metrics).__name__]

    async def answering(made: SimpleNamespace) -> Said:
        assert not made.headers
        return Said()

    async def scenario() -> None:
        toy = Toy(tmp_path, act, answering)
        assert json.loads((await toy.run(row())).body) == ["Said", "Said"]
        assert not toy.journal.records["r"].answers
        assert isinstance(await toy.client.post("res", "/tool", json={}), Said)
        direct = await toy.post("/v1/responses", {})  # somebody else asks the agent for a response
        assert json.loads(direct.body) == ["Said", "Said"]
        assert set(toy.journal.records) == {"r"}
        await toy.agent.close()

    asyncio.run(scenario())


def test_each_call_carries_its_rollout_its_attempt_and_a_name(tmp_path: Path) -> None:
    async def act(client: Any, request: Any) -> Any:
        if request[0] == "/run":
            await client.post("agent", "/v1/responses", json={}, headers={"x-own": "1"})
        return (await client.post("res", "/tool", json={"in": request[0]})).status

    async def answering(made: SimpleNamespace) -> Said:
        return Said()

    async def scenario() -> None:
        toy = Toy(tmp_path, act, answering)
        await toy.run(row("a/b"), attempt=4)
        own, inner, outer = toy.calls
        assert own.headers["x-own"] == "1"
        incarnation = toy.journal.records["a/b"].incarnation
        assert len(incarnation) == 8
        for made in toy.calls:
            assert made.headers[words.ROLLOUT] == "a/b"
            assert made.headers[words.ATTEMPT] == "4"
            assert made.headers[words.CALL].startswith(f"a/b.{incarnation}@agent#")
        assert inner.headers[words.CALL].startswith(own.headers[words.CALL] + ">")
        assert inner.headers[words.CALL] != outer.headers[words.CALL]
        scopes = {answer.path: answer.scope for answer in toy.journal.records["a/b"].answers}
        assert scopes == {"/v1/responses": "/run", "/tool": "/run"}
        late = [(words.ROLLOUT.encode(), b"a/b"), (OWN.encode(), toy.journal.lineage.encode())]
        nested = await toy.post("/v1/responses", {}, headers=late)
        assert (nested.status, nested.header(words.REFUSED)) == (409, "stale attempt")
        answers = len(toy.journal.records["a/b"].answers)
        other = await toy.post(
            "/v1/responses", {}, headers=late[:1]
        )  # of another agent, that keeps the answer itself
        assert other.status == 200
        assert not toy.calls[-1].headers
        assert len(toy.journal.records["a/b"].answers) == answers
        await toy.agent.close()

    asyncio.run(scenario())


def test_arguments_are_kept_of_calls_to_resources_servers_only(tmp_path: Path) -> None:
    class Body:
        def model_dump(self, *, exclude_unset: bool) -> dict[str, Any]:
            assert exclude_unset
            return {"n": 1}

    async def act(client: Any, request: Any) -> Any:
        await client.post("res", "/tool", json=Body())
        await client.post("model", "/v1/responses", json=Body())
        return {}

    async def answering(made: SimpleNamespace) -> Said:
        return Said()

    async def scenario() -> None:
        toy = Toy(tmp_path, act, answering)
        await toy.run(row())
        tool, model = toy.journal.records["r"].answers
        assert tool.arguments == b'{"n":1}'
        assert not tool.model
        assert model.arguments == b""
        assert model.model
        await toy.agent.close()

    asyncio.run(scenario())
