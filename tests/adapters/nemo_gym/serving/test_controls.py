"""Who may ask, how much is read of it, and what a failure looks like from outside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from unbroken.adapters.nemo_gym import control, words
from unbroken.adapters.nemo_gym.control import Committed, Nothing, Refusal
from unbroken.adapters.nemo_gym.serving.asgi import Message, Reply
from unbroken.adapters.nemo_gym.serving.controls import Controls


async def _fails(_: Any) -> Nothing:
    raise KeyError("a bug")


async def _done(_: Any) -> Nothing:
    return Nothing()


CONTROLS = Controls("right", {"status": _fails, "committed": _done}, epoch=lambda: 7)


async def _ask(
    operation: str,
    receive: Callable[[], Awaitable[Message]],
    *,
    token: str = "right",
    epoch: str = "7",
    length: str = "",
) -> Reply:
    given = {words.CONTROL: token, words.EPOCH: epoch, "content-length": length}
    scope = {
        "type": "http",
        "path": words.PREFIX + operation,
        "headers": [(key.encode(), value.encode()) for key, value in given.items() if value],
    }
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await CONTROLS(scope, receive, send)
    return Reply(sent[0]["status"], sent[0]["headers"], sent[1]["body"])


def _body(data: bytes) -> Callable[[], Awaitable[Message]]:
    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    return receive


async def _unread() -> Message:
    raise AssertionError("nothing of the body may be read")


def _refusal(reply: Reply) -> Refusal:
    assert reply.header(words.REFUSED)
    return msgspec.msgpack.decode(reply.body, type=Refusal)


def test_a_bug_in_an_operation_is_answered_as_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        reply = asyncio.run(_ask("status", _body(b"")))
    refused = _refusal(reply)
    assert (reply.status, refused.kind) == (500, "other")
    assert "KeyError('a bug')" in refused.error
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("operation", "token", "kind"), [("committed", "wrong", "token"), ("no_such", "right", "other")]
)
def test_nothing_is_read_from_who_may_not_ask(operation: str, token: str, kind: str) -> None:
    reply = asyncio.run(_ask(operation, _unread, token=token))
    assert _refusal(reply).kind == kind


def test_nothing_is_read_of_a_body_that_says_it_is_too_long() -> None:
    refused = _refusal(asyncio.run(_ask("committed", _unread, length=str(1 << 40))))
    assert (refused.kind, "more than" in refused.error) == ("format", True)


def test_a_body_without_an_end_is_read_up_to_a_bound() -> None:
    read = 0

    async def receive() -> Message:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    refused = _refusal(asyncio.run(_ask("committed", receive)))
    assert (refused.kind, read) == ("format", 65)


def test_another_epoch_is_fenced() -> None:
    body = msgspec.msgpack.encode(Committed(mark=1))
    assert asyncio.run(_ask("committed", _body(body))).status == 200
    assert _refusal(asyncio.run(_ask("committed", _body(body), epoch="6"))).kind == "fenced"
    assert set(control.OPERATIONS) > {"committed"}


def test_a_request_that_is_cut_off_in_its_body_is_not_carried_out() -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(words.CONTROL.encode(), b"right"), (words.EPOCH.encode(), b"7")]
    asyncio.run(
        CONTROLS({"type": "http", "path": words.PREFIX + "committed", "headers": headers}, gone, send)
    )
