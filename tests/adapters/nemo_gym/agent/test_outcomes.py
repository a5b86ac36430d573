"""What a request for a rollout is answered with: once, by whom it concerns, and never a reward for a failure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters.nemo_gym.agent.toys import Said, Toy, row, until
from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Drop
from unbroken.errors import StoreError


async def one_call(client: Any, request: Any) -> Any:
    answer = await client.post("res", "/tool", json={"n": request[1].get("n", 0)})
    return {"reward": 1.0, "status": answer.status, "said": await answer.text()}


async def stubborn(client: Any, request: Any) -> Any:
    """An agent that makes a result of whatever it meets."""
    try:
        answer = await client.post(request[1].get("server", "res"), request[1].get("path", "/tool"), json={})
    except Exception as error:  # noqa: BLE001  (that is what such agents do)
        return {"reward": 0.0, "error": repr(error)}
    return {"reward": 1.0, "said": await answer.json()}


class Held:
    """A server that answers when it is let; its `n`-th answer is `n`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.made = 0

    async def __call__(self, made: SimpleNamespace) -> Said:
        self.asked.set()
        await self.let.wait()
        self.made += 1
        return Said(self.made)


def refusal(kind: str, *, status: int = 409, body: str = "why") -> Any:
    async def refuse(made: SimpleNamespace) -> Said:
        return Said({"error": body}, status, headers={words.REFUSED: kind})

    return refuse


def test_a_rollout_that_is_asked_for_twice_runs_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        toy = Toy(tmp_path, one_call, held)
        both = [asyncio.create_task(toy.run(row())) for _ in range(2)]
        await held.asked.wait()
        assert len(toy.agent.executions) == 1
        held.let.set()
        first, second = await asyncio.gather(*both)
        assert first.body == second.body
        assert not first.header(words.REPLAYED)
        later = await toy.run(row(), attempt=3)
        assert later.body == first.body
        assert later.header(words.REPLAYED) == "1"
        assert len(toy.calls) == 1
        await toy.run(row("another"))
        assert len(toy.calls) == 2
        await toy.agent.close()

    asyncio.run(scenario())


def test_a_client_that_goes_away_takes_no_rollout_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        toy = Toy(tmp_path, one_call, held)
        gone = asyncio.create_task(toy.run(row()))
        await held.asked.wait()
        gone.cancel()
        await asyncio.wait({gone})
        held.let.set()
        assert json.loads((await toy.run(row())).body)["reward"] == 1.0
        assert len(toy.calls) == 1
        await toy.agent.close()

    asyncio.run(scenario())


def test_a_later_attempt_takes_a_running_one_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        toy = Toy(tmp_path, stubborn, held)
        old = asyncio.create_task(toy.run(row(), attempt=1))
        await held.asked.wait()
        new = asyncio.create_task(toy.run(row(), attempt=2))
        superseded = await old
        assert superseded.status == 409
        assert superseded.header(words.REFUSED) == "stale attempt"
        assert b"reward" not in superseded.body
        held.let.set()
        result = await new
        assert json.loads(result.body) == {"reward": 1.0, "said": 1}
        assert [made.headers[words.ATTEMPT] for made in toy.calls] == ["1", "2"]
        assert toy.calls[0].headers[words.CALL] == toy.calls[1].headers[words.CALL]
        stale = await toy.run(row(), attempt=1)
        assert (stale.status, stale.header(words.REFUSED)) == (409, "stale attempt")
        assert len(toy.calls) == 2
        await toy.agent.close()

    asyncio.run(scenario())


def test_a_stale_attempt_is_refused_while_a_later_one_runs_and_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        toy = Toy(tmp_path, one_call, held)
        running = asyncio.create_task(toy.run(row(), attempt=2))
        await held.asked.wait()
        assert (await toy.run(row(), attempt=1)).status == 409
        await toy.agent.close()
        await running
        held.let.set()
        again = Toy(tmp_path, one_call, held)
        refused = await again.run(row(), attempt=1)
        assert refused.status == 409
        assert not again.calls
        assert (await again.run(row(), attempt=2)).status == 200
        await again.agent.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "request_row", "kind"),
    [
        (refusal("busy"), {}, "busy"),
        (refusal("bad cookie", status=403), {}, "bad cookie"),
        (refusal("never heard of"), {}, "other"),
        (refusal("lost session"), {}, "lost session"),
        (refusal("unknown session"), {}, "unknown session"),
        (503, {}, "other"),
        (502, {}, "other"),
        (500, {"path": "/verify"}, "other"),
        (500, {"path": "/seed_session"}, "other"),
        (500, {"server": "model", "path": "/v1/responses"}, "other"),
    ],
)
def test_a_failure_of_another_server_is_never_a_reward(
    tmp_path: Path, answer: Any, request_row: dict[str, str], kind: str
) -> None:
    async def scenario() -> None:
        async def failing(made: SimpleNamespace) -> Said:
            if mended:
                return Said("fine")
            return Said("out of order", answer) if isinstance(answer, int) else await answer(made)

        mended = False
        toy = Toy(tmp_path, stubborn, failing)
        reply = await toy.run(row(**request_row))
        assert reply.status == 503
        assert reply.header(words.REFUSED) == kind
        said = json.loads(reply.body)
        assert said["kind"] == kind
        assert request_row.get("path", "/tool") in said["error"]
        assert "reward" not in said
        lost = kind in {"lost session", "unknown session", "bad cookie"}
        names = {made.headers[words.CALL] for made in toy.calls}
        assert ("begins afresh" in said["error"]) is lost
        mended = True
        assert json.loads((await toy.run(row(**request_row), attempt=1)).body) == {
            "reward": 1.0,
            "said": "fine",
        }
        names.add(toy.calls[-1].headers[words.CALL])
        assert (len(names) == 2) is lost
        await toy.agent.close()

    asyncio.run(scenario())


def test_a_lost_session_lets_a_rollout_begin_afresh(tmp_path: Path) -> None:
    async def two(client: Any, request: Any) -> Any:
        await client.post("res", "/seed_session", json={})
        return {"said": (await client.post("res", "/tool", json={})).status}

    async def scenario() -> None:
        async def losing(made: SimpleNamespace) -> Said:
            return await refusal("lost session")(made) if made.path == "/tool" and lost else Said()

        lost = True
        toy = Toy(tmp_path, two, losing)
        await toy.run(row(), attempt=0)
        lost = False
        assert (await toy.run(row(), attempt=1)).status == 200
        assert toy.paths() == ["/seed_session", "/tool", "/seed_session", "/tool"]
        assert (
            len({made.headers[words.CALL] for made in toy.calls}) == 4
        )  # else the server would give the lost session
        await toy.agent.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_what_a_tool_says_is_a_result_whatever_its_number(tmp_path: Path, status: int) -> None:
    async def scenario() -> None:
        async def answering(made: SimpleNamespace) -> Said:
            return Said("no such thing", status)

        toy = Toy(tmp_path, one_call, answering)
        reply = await toy.run(row())
        assert json.loads(reply.body) == {"reward": 1.0, "status": status, "said": '"no such thing"'}
        assert toy.journal.records["r"].answers[0].status == status
        await toy.agent.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["/run", "/v1/responses"])
def test_an_agent_that_fails_by_itself_says_so_and_asks_again_for_what_may_change(
    tmp_path: Path, where: str
) -> None:
    async def failing(client: Any, request: Any) -> Any:
        path, _ = request
        if path == where:
            await client.post("res", "/tool", json={})
            answer = await client.post("model", "/v1/responses", json={})
            if answer.status == 429:
                raise LookupError("too many")
            return {"reward": 1.0}
        own = await client.post("agent", "/v1/responses", json={})
        own.raise_for_status()
        return {"reward": 1.0}

    async def scenario() -> None:
        async def answering(made: SimpleNamespace) -> Said:
            return Said("slow down", 429) if made.server == "model" and crowded else Said()

        crowded = True
        toy = Toy(tmp_path, failing, answering)
        reply = await toy.run(row())
        assert (reply.status, reply.header(words.REFUSED)) == (500, "other")
        assert b"reward" not in reply.body
        crowded = False
        assert (await toy.run(row(), attempt=1)).status == 200
        assert [path for path in toy.paths() if path == "/tool"] == ["/tool"]
        await toy.agent.close()

    asyncio.run(scenario())


def test_a_row_that_an_agent_does_not_understand_is_not_kept(tmp_path: Path) -> None:
    async def picky(client: Any, request: Any) -> Any:
        return 422, {"detail": "no"}

    async def scenario() -> None:
        toy = Toy(tmp_path, picky, Held())
        reply = await toy.run(row())
        assert (reply.status, reply.header(words.REFUSED)) == (422, "")
        assert not toy.journal.records
        refused = await toy.post("/run", row(_ng_attempt_index="two"))
        assert (refused.status, refused.header(words.REFUSED)) == (400, "format")
        await toy.agent.close()

    asyncio.run(scenario())


def test_a_rollout_that_was_dropped_while_it_ran_comes_to_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        toy = Toy(tmp_path, stubborn, held)
        asked = asyncio.create_task(toy.run(row()))
        await held.asked.wait()
        await toy.control("drop", Drop(rollouts=["r", "never heard of"]))
        assert (await asked).status == 409
        assert not toy.journal.records
        assert not toy.agent.gate.in_flight()
        await toy.agent.close()

    asyncio.run(scenario())


def test_a_log_that_fails_stops_the_rollouts_that_need_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        toy = Toy(tmp_path, stubborn, held)
        asked = asyncio.create_task(toy.run(row()))
        await held.asked.wait()

        def full(label: str, payload: bytes) -> int:
            raise StoreError("The disk is full.")

        toy.journal._log.append = full  # type: ignore[method-assign]
        held.let.set()
        reply = await asked
        assert reply.status == 503
        assert b"disk is full" in reply.body
        assert (await toy.run(row("another"))).status == 503
        await toy.agent.close()

    asyncio.run(scenario())


NUMBERED = {"_ng_task_index": 3, "_ng_rollout_index": 1}


@pytest.mark.parametrize("unstamped", [NUMBERED, {}])
def test_a_row_of_the_official_command_is_answered_again_only_after_a_crash(
    tmp_path: Path, unstamped: dict[str, int]
) -> None:
    async def scenario() -> None:
        held = Held()
        held.let.set()
        toy = Toy(tmp_path, one_call, held)
        assert json.loads((await toy.run(unstamped)).body)["said"] == "1"
        assert json.loads((await toy.run(unstamped)).body)["said"] == "2"  # another collection
        assert len({made.headers[words.CALL] for made in toy.calls}) == 2
        assert len(toy.journal.records) == 1
        await toy.agent.close()

        again = Toy(tmp_path, one_call, held)  # who asks now may have asked before
        reply = await again.run(unstamped)
        assert (json.loads(reply.body)["said"], reply.header(words.REPLAYED)) == ("2", "1")
        assert json.loads((await again.run(unstamped)).body)["said"] == "3"
        assert json.loads((await again.run({**unstamped, "n": 1})).body)["said"] == "4"
        assert not any(record.stamped for record in again.journal.records.values())
        await again.agent.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("unstamped", "runs"), [(NUMBERED, 1), ({}, 2)])
def test_equal_rows_at_the_same_time_are_one_rollout_only_if_they_are_numbered(
    tmp_path: Path, unstamped: dict[str, int], runs: int
) -> None:
    async def scenario() -> None:
        held = Held()
        toy = Toy(tmp_path, one_call, held)
        both = [asyncio.create_task(toy.run(unstamped)) for _ in range(2)]
        await held.asked.wait()
        await until(lambda: len(toy.calls) == runs)
        assert len(toy.agent.executions) == runs
        held.let.set()
        said = {json.loads(reply.body)["said"] for reply in await asyncio.gather(*both)}
        assert len(said) == runs == len(toy.calls)
        await toy.agent.close()

    asyncio.run(scenario())
