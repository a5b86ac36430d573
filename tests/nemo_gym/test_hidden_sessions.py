"""Servers that keep a session where nobody looks, or make the place for it at the first call, come back as they were or refuse."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nemo_gym.serving import Served, serving

SOURCE = """
from collections import deque
from fastapi import Request
from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer
from nemo_gym.server_utils import SESSION_ID_KEY
from typing import Any

HELD: deque = deque()
ROOMS: dict = {{"rooms": {{"a": {{}}}}}}

class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    d: Any = None

    def setup_webserver(self):
        app = super().setup_webserver()
        closed: dict = {{}}
        app.state.held = {{}}

        async def inc(request: Request):
            sid = request.session[SESSION_ID_KEY]
            {inc}

        app.post("/inc")(inc)
        return app

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)
"""
COUNTED = "d[{key}] = d.get({key}, 0) + 1\n            return {{'v': d[{key}]}}"
SHAPES = {
    "a dict made on demand": "self.d = d = self.d or {}\n            " + COUNTED.format(key="sid"),
    "keys that are tuples": "self.d = d = self.d or {}\n            " + COUNTED.format(key="(sid, 'n')"),
    "a list made on demand": "self.d = self.d or []\n            self.d.append(sid)\n            return {'v': self.d.count(sid)}",
    "a global deque": "HELD.append(sid)\n            return {'v': HELD.count(sid)}",
    "a global dict below two others": "d = ROOMS['rooms']['a']\n            " + COUNTED.format(key="sid"),
    "a closure": "d = closed\n            " + COUNTED.format(key="sid"),
    "the state of the application": "d = app.state.held\n            " + COUNTED.format(key="sid"),
}
_numbers = itertools.count()


@pytest.fixture
def new_class(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Return the class of a shape as another process would have it: of a module that was executed anew."""
    names: list[str] = []

    def make(shape: str) -> Any:
        name = f"hidden_sessions_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(SOURCE.format(inc=SHAPES[shape].replace("{{", "{").replace("}}", "}")))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module.Server

    yield make
    for name in names:
        del sys.modules[name]


def _inc(server: Served, cookie: str) -> Any:
    answer = server.post("/inc", cookie=cookie)
    assert answer.status_code == 200, answer.text
    return answer.json()["v"]


@pytest.mark.parametrize("shape", SHAPES)
def test_two_sessions_go_on_after_two_restarts(
    new_class: Callable[[str], Any], tmp_path: Path, shape: str
) -> None:
    with serving(new_class(shape), tmp_path / "log") as server:
        assert server.told("status").capability == "replay"
        cookies = [server.seeded(rollout=f"r{number}", call="1") for number in range(2)]
        assert [_inc(server, cookies[0]), _inc(server, cookies[0]), _inc(server, cookies[1])] == [1, 2, 1]
    for turn in (1, 2):
        with serving(new_class(shape), tmp_path / "log") as server:
            assert {recovered.tier for recovered in server.recovered().values()} <= {"replayed", "newest"}
            assert [_inc(server, cookie) for cookie in cookies] == [2 + turn, 1 + turn]
    with serving(new_class(shape), None) as server:
        assert [_inc(server, cookie) for cookie in cookies] == [1, 1], "as it is without a log"


def test_a_session_seeded_between_others_does_not_get_in_their_way(
    new_class: Callable[[str], Any], tmp_path: Path
) -> None:
    """What sessions share is written when one is seeded. It must not hold what calls that are made again will put there."""
    with serving(new_class("keys that are tuples"), tmp_path / "log") as server:
        first = server.seeded(rollout="r0", call="1")
        assert _inc(server, first) == 1
        second = server.seeded(rollout="r1", call="1")
        assert [_inc(server, first), _inc(server, second)] == [2, 1]
    with serving(new_class("keys that are tuples"), tmp_path / "log") as server:
        assert {recovered.tier for recovered in server.recovered().values()} == {"replayed"}
        assert [_inc(server, first), _inc(server, second)] == [3, 2]
