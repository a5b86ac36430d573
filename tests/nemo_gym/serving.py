"""A real server with its application, in the process of a test, and a client to it that can also control it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from in_process import build
from starlette.testclient import TestClient

from unbroken.adapters.nemo_gym import control, words
from unbroken.adapters.nemo_gym.attach import checkpointed
from unbroken.adapters.nemo_gym.keys import control_token


class Served:
    """`client` speaks HTTP to the server and keeps its cookies; `told` controls it."""

    def __init__(self, server: Any, client: TestClient) -> None:
        self.server = server
        self.client = client
        self.epoch = 0

    def post(self, path: str, body: object = None, *, cookie: str = "", **headers: str) -> Any:
        """Call the server. Only `cookie` is sent; headers are named as `words` has them: rollout, attempt, call."""
        self.client.cookies.clear()
        names = {"rollout": words.ROLLOUT, "attempt": words.ATTEMPT, "call": words.CALL}
        given = {names.get(name, name): value for name, value in headers.items()}
        if cookie:
            given["cookie"] = cookie
        return self.client.post(path, json=body or {}, headers=given)

    def seeded(self, path: str = "/seed_session", body: object = None, **headers: str) -> str:
        """Begin a session; return its cookie."""
        answer = self.post(path, body, **headers)
        assert answer.status_code == 200, answer.text
        return "; ".join(f"{name}={value}" for name, value in answer.cookies.items())

    def told(self, operation: str, asked: msgspec.Struct | None = None) -> Any:
        headers = {words.CONTROL: control_token(), words.EPOCH: str(self.epoch)}
        content = msgspec.msgpack.encode(asked or control.Nothing())
        answer = self.client.post(words.PREFIX + operation, content=content, headers=headers)
        if answer.status_code != 200:
            return msgspec.msgpack.decode(answer.content, type=control.Refusal)
        result = msgspec.msgpack.decode(answer.content, type=control.OPERATIONS[operation][1])
        if isinstance(result, control.Epoch):
            self.epoch = result.epoch
        return result

    def adopt(self) -> None:
        self.told("adopt", control.Adopt(run="run"))

    def digests(self) -> dict[str, str]:
        return {summary.id: summary.digest for summary in self.told("digests").sessions}

    def recovered(self) -> dict[str, control.Recovered]:
        self.client.get("/stats-of-nothing")  # waits at the door until the server is restored
        return {recovered.id: recovered for recovered in self.told("status").recovery.listed}


@contextmanager
def serving(cls: Any, directory: Path | None, *, name: str = "res", **options: Any) -> Generator[Served]:
    """Serve `cls` as `run_webserver` would; without a directory as NeMo Gym has it."""
    config = options.pop("config", {})
    wrapped = cls if directory is None else checkpointed(cls, directory=directory, **options)
    server, app = build(wrapped, name, **config)
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield Served(server, client)
