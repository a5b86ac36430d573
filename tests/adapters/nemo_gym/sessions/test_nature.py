"""What is read out of a server's source, and how its state looks to people."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.nemo_gym.sessions.servers import Config, Server, Table, session
from unbroken.adapters.nemo_gym.sessions.clocks import names_in
from unbroken.adapters.nemo_gym.sessions.context import LONGEST, MOST, WIDEST, view
from unbroken.adapters.nemo_gym.sessions.registry import config_hash, tools_of
from unbroken.adapters.nemo_gym.sessions.states import SessionStates

SOURCES = {
    "stateless": """
class Server:
    def __init__(self):
        self.config = None
        self.prompts = {}
        self._load()
    def _load(self):
        self.prompts["a"] = "b"
    def verify(self, text):
        prompt = self.prompts["a"]
        return prompt.format(text), len(self.prompts), self.prompts.get(text)
""",
    "snapshot": """
class Server:
    def __init__(self):
        self.config = None
        self.sessions = {}
    def seed(self, session):
        held = self.sessions
        held[session] = 1
""",
    "replay by an object of its own": """
class Tools:
    def __init__(self):
        self.x = []
class Server:
    def __init__(self):
        self.config = None
        self.tools = Tools()
    def seed(self, session):
        self.tools.begin(session)
""",
    "replay": """
import subprocess
class Handle:
    def __init__(self):
        self.process = subprocess.Popen(["cat"])
class Server:
    sessions: "dict[str, Handle]"
    def __init__(self):
        self.config = None
        self.sessions = {}
    def seed(self, session):
        self.sessions[session] = Handle()
""",
    "drain_only": """
import asyncio
waiting: dict[str, list[asyncio.Future]] = {}
class Server:
    def __init__(self):
        self.config = None
""",
    "restart_only": """
class Server:
    def __init__(self):
        self.config = None
        self.boxes: dict[str, "AsyncSandbox"] = {}
""",
}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Any]:
    loaded: list[str] = []

    def build(source: str, name: str = "a_server") -> Any:
        path = tmp_path / name / "app.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(f"{name}_app", path)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        loaded.append(module.__name__)
        spec.loader.exec_module(module)
        return module.Server()

    yield build
    for name in loaded:
        del sys.modules[name]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_servers_source_says_what_can_be_done(load: Any, kind: str) -> None:
    states = SessionStates(load(SOURCES[kind]), key=b"k" * 32)
    assert states.capability == kind.split(" ", maxsplit=1)[0]


def test_a_class_of_another_file_of_the_server_is_looked_at(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_server").mkdir()
    (tmp_path / "a_server" / "a_servers_handle.py").write_text(SOURCES["replay"])
    monkeypatch.syspath_prepend(str(tmp_path / "a_server"))
    source = SOURCES["snapshot"].replace("self.sessions = {}", "self.sessions: 'dict[str, Handle]' = {}")
    server = load("from a_servers_handle import Handle\n" + source)
    assert SessionStates(server, key=b"k" * 32).capability == "replay"


def test_single_servers_are_known_by_their_folder(load: Any) -> None:
    server = load(SOURCES["snapshot"], "genrm_compare")
    assert SessionStates(server, key=b"k" * 32).capability == "drain_only"


def test_moments_are_found_wherever_they_are_stored() -> None:
    source = """
import time
from dataclasses import dataclass, field
@dataclass
class Session:
    begun: float = field(default_factory=time.monotonic)
class Server:
    def seed(self, sid):
        now = time.monotonic()
        self.a[sid] = now
        self.b.setdefault(sid, time.perf_counter())
        self.c = {"d": time.monotonic()}
        self.e = Session(f=now + 5)
        self.g.append(now)
        self.h = now - self.a[sid]
        self.i = time.time()
        elapsed = time.monotonic() - now
        self.j = elapsed
        self.k["l"] = time.monotonic()
"""
    assert names_in(ast.parse(source)) >= {"begun", "a", "b", "d", "f", "g", "l"}
    assert not names_in(ast.parse(source)) & {"i", "j", "c", "e"}


def test_people_see_plain_values_and_what_was_cut() -> None:
    made = session(1)
    shown = view({
        "n": 1, "text": "x" * (LONGEST + 5), "image": "data:image/png;base64," + "A" * 5000, "table": Table([1]), "pair": (1, 2),
        "many": list(range(WIDEST + 7)), "nan": math.nan, 3: made,
    })  # fmt: skip
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["text"].endswith("(5 more characters)")
    assert shown["image"] == {"$media": "image/png", "characters": 5022}
    assert shown["table"]["$object"].endswith("servers.Table")
    assert len(shown["table"]["digest"]) == 32
    assert shown["pair"] == [1, 2]
    assert shown["many"][-1] == {"$cut": "7 more"}
    assert shown["3"]["$object"].endswith("Session")
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    assert "$cut" in json.dumps(view(deep))
    assert len(json.dumps(view([[[0] * 90] * 90] * 90))) < 20 * MOST


class Route:
    def __init__(self, path: str, *methods: str) -> None:
        self.path, self.methods, self.name = path, set(methods), path.strip("/")
        self.body_field = None


class App:
    def __init__(self, *routes: Route) -> None:
        self.routes = routes


def test_tools_are_routes_and_what_is_offered_over_mcp() -> None:
    def weather(self: Any, session_id: str, city: str = "Oslo") -> str:
        return city

    vars(weather)["__gym_tool__"] = True
    server: Any = type("Tooled", (Server,), {"weather": weather})({})
    tools = tools_of(
        server, App(Route("/openapi.json", "GET"), Route("/docs", "GET"), Route("/a", "POST", "GET", "HEAD"))
    )
    assert [(tool.name, tool.path, tool.method) for tool in tools] == [
        ("a", "/a", "GET"), ("a", "/a", "POST"), ("weather", "/mcp", "MCP"),
    ]  # fmt: skip


def test_settings_that_say_where_a_server_runs_do_not_count() -> None:
    class Settings(Config):
        def model_dump(self, *, mode: str) -> dict[str, Any]:
            assert mode == "python"
            return self.settings

    def hashed(**settings: Any) -> str:
        server = Server({})
        vars(server)["config"] = Settings(**settings)
        return config_hash(server)

    first = hashed(
        host="a", port=1, entrypoint="app.py", name="x", items={"b", "a"}, path=Path("p"), rule=session
    )
    assert first == hashed(
        host="b", port=2, entrypoint="c.py", name="x", items={"a", "b"}, path=Path("p"), rule=session
    )
    assert first != hashed(
        host="a", port=1, entrypoint="app.py", name="y", items={"b", "a"}, path=Path("p"), rule=session
    )
    assert len(first) == 64
