"""A model server is drained, says its policy, and puts its sessions on their backends again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import (
    OPERATIONS,
    Activate,
    Adopt,
    Epoch,
    Export,
    Exported,
    Nothing,
    Policy,
    Prepare,
    Quiesce,
    Recovery,
    Refusal,
    Status,
)
from unbroken.adapters.nemo_gym.model.attach import ModelMiddleware, attach
from unbroken.adapters.nemo_gym.options import Options
from unbroken.adapters.nemo_gym.serving.asgi import Reply, call
from unbroken.errors import ConfigError


class VLLM:
    """A front of two backends, by its attributes."""

    def __init__(self, backends: int = 2) -> None:
        self.config = SimpleNamespace(name="policy", num_workers=None)
        self._clients = [object() for _ in range(backends)]
        self._session_id_to_client: dict[str, object] = {}


class Served:
    """A model server with everything around it; it answers when it is let."""

    def __init__(self, directory: Path, server: Any, *, key: bytes = bytes(32), start: Any = "open") -> None:
        self.let = asyncio.Event()
        self.asked = asyncio.Event()
        self.middleware: Any = None
        attach(server, self, Options(directory=directory, key=key, token="token", start=start))

    def add_middleware(self, middleware: type[ModelMiddleware], **arguments: Any) -> None:
        self.model = arguments["model"]
        self.middleware = middleware(self._application, **arguments)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        await self.let.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"1")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async def ask(self, method: str = "POST", path: str = "/v1/responses") -> Reply:
        headers = [(words.ROLLOUT.encode(), b"r"), (words.CALL.encode(), b"r#1")]
        return await call(
            self.middleware, {"type": "http", "method": method, "path": path, "headers": headers}, b"{}"
        )

    async def control(self, operation: str, arguments: Any = None) -> Any:
        headers = [(words.CONTROL.encode(), b"token"), (words.EPOCH.encode(), str(self.model.epoch).encode())]
        scope = {"type": "http", "method": "POST", "path": f"{words.PREFIX}{operation}", "headers": headers}
        reply = await call(
            self.middleware, scope, b"" if arguments is None else msgspec.msgpack.encode(arguments)
        )
        return msgspec.msgpack.decode(
            reply.body, type=OPERATIONS[operation][1] if reply.status == 200 else Refusal
        )


def test_a_drain_waits_for_what_is_being_generated(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path, VLLM())
        assert await served.control("adopt", Adopt(run="one")) == Epoch(epoch=1)
        await served.control("policy", Policy(version="12"))
        asked = asyncio.create_task(served.ask())
        await served.asked.wait()
        status: Status = await served.control("status")
        assert [(call.path, call.rollout, call.id) for call in status.in_flight] == [
            ("/v1/responses", "r", "r#1")
        ]
        busy = await served.control("quiesce", Quiesce(timeout=0.01))
        assert isinstance(busy, Refusal)
        await served.control("policy", Policy(version="13"))
        served.let.set()
        assert (await asked).header(words.POLICY) == "12"
        assert await served.control("quiesce", Quiesce(timeout=300)) == Nothing()
        assert (await served.ask("GET", "/")).status == 200
        waiting = asyncio.create_task(served.ask())
        await asyncio.sleep(0)
        assert not waiting.done()
        await served.control("release")
        assert (await waiting).header(words.POLICY) == "13"
        await served.model.close()

        again = Served(tmp_path, VLLM())
        status = await again.control("status")
        assert (status.epoch, status.cache["policy_version"], status.recovery.source) == (1, "13", "log")
        assert status.role == "model"
        await again.model.close()

    asyncio.run(scenario())


def test_sessions_are_served_by_the_backends_that_they_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = VLLM()
        for session, place in (("a", 1), ("b", 0), ("c", 1)):
            server._session_id_to_client[session] = server._clients[place]
        served = Served(tmp_path / "a", server)
        assert (await served.control("export", Export())).kind == "other"
        await served.control("quiesce", Quiesce(timeout=300))
        exported: Exported = await served.control("export", Export())
        await served.model.close()

        other = VLLM()
        pinned = other._session_id_to_client
        back = Served(tmp_path / "b", other, start="closed")
        prepare = Prepare(shared=exported.shared)
        assert not (await back.control("prepare", prepare)).problems
        assert not pinned
        recovery: Recovery = await back.control("activate", Activate())
        assert (recovery.source, recovery.sessions) == ("checkpoint", 3)
        assert pinned == {"a": other._clients[1], "b": other._clients[0], "c": other._clients[1]}
        await back.model.close()

        one = VLLM(backends=1)
        fewer = Served(tmp_path / "c", one, start="closed")
        await fewer.control("prepare", prepare)
        recovery = await fewer.control("activate", Activate())
        assert set(one._session_id_to_client) == {"b"}
        assert "2 sessions" in recovery.notes[0]
        await fewer.model.close()

        stranger = Served(tmp_path / "d", VLLM(), key=bytes(31) + b"1", start="closed")
        (problem,) = (await stranger.control("prepare", prepare)).problems
        assert "another key" in problem.what
        await stranger.model.close()

    asyncio.run(scenario())


def test_several_workers_are_refused(tmp_path: Path) -> None:
    server = VLLM()
    server.config.num_workers = 2
    with pytest.raises(ConfigError, match="num_workers: 1"):
        Served(tmp_path, server)
    assert not list(tmp_path.iterdir())


def test_a_new_coordinator_ends_the_drain_of_the_old_one_and_what_it_prepared(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = Served(tmp_path, VLLM())
        await served.control("adopt", Adopt(run="one"))
        asked = asyncio.create_task(served.ask())
        await served.asked.wait()
        await served.control("prepare", Prepare())
        drained = asyncio.create_task(served.control("quiesce", Quiesce(timeout=300)))
        while served.model.gate.is_open:  # noqa: ASYNC110  (nothing is signalled where an outsider looks)
            await asyncio.sleep(0)
        assert await served.control("adopt", Adopt(run="two")) == Epoch(epoch=2)
        assert served.model.gate.is_open
        served.let.set()
        assert (await drained).kind == "fenced"
        await asked
        assert isinstance(await served.control("export", Export()), Refusal)
        await served.control("quiesce", Quiesce(timeout=300))
        assert "Nothing was prepared" in (await served.control("activate", Activate())).error
        await served.model.close()

    asyncio.run(scenario())


def test_a_log_that_cannot_be_taken_up_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> dict[str, int]:
        raise LookupError("no backends")

    with monkeypatch.context() as patched:
        patched.setattr("unbroken.adapters.nemo_gym.model.attach.pins_of", broken)
        patched.setattr("unbroken.adapters.nemo_gym.model.attach._MOST_LINES", -1)
        with pytest.raises(LookupError):
            Served(tmp_path, VLLM())
    asyncio.run(Served(tmp_path, VLLM()).model.close())
