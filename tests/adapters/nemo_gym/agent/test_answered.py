"""What an agent sees of an answer is what it would see of aiohttp's own."""

from __future__ import annotations

import asyncio

import pytest

from unbroken.adapters.nemo_gym.agent.answered import AnsweredResponse

aiohttp = pytest.importorskip("aiohttp")


def test_it_has_what_agents_use() -> None:
    async def scenario() -> None:
        answer = AnsweredResponse(
            status=200,
            body='{"a": "é"}'.encode("latin-1"),
            content_type="application/json; charset=latin-1",
            cookies=("s=abc; Path=/; HttpOnly", "t=2"),
            url="http://res/tool",
        )
        async with answer as same:
            assert same is answer
        assert answer.ok
        assert answer.content_type == "application/json"
        assert await answer.json() == {"a": "é"}
        assert await answer.text() == '{"a": "é"}'
        assert await answer.content.read() == await answer.read()
        assert await answer.content.read() == b""
        assert answer.content.at_eof()
        assert {key: morsel.value for key, morsel in answer.cookies.items()} == {"s": "abc", "t": "2"}
        assert answer.cookies["s"]["httponly"]
        assert answer.headers["content-TYPE"] == "application/json; charset=latin-1"
        assert answer.headers.getall("set-cookie") == ["s=abc; Path=/; HttpOnly", "t=2"]
        assert str(answer.url) == "http://res/tool"
        assert await AnsweredResponse(status=200, body=b" ").json() is None
        answer.raise_for_status()
        await answer.release()
        answer.close()

    asyncio.run(scenario())


def test_a_failure_is_aiohttps_own() -> None:
    answer = AnsweredResponse(status=422, body=b"no", content_type="", url="http://res/tool")
    assert not answer.ok
    assert answer.content_type == "application/octet-stream"
    with pytest.raises(aiohttp.ClientResponseError) as raised:
        answer.raise_for_status()
    assert raised.value.status == 422
    assert raised.value.request_info.method == "POST"
    assert AnsweredResponse(status=799, body=b"").reason == ""
