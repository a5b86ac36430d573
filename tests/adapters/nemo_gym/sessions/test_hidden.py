"""What a server keeps where nobody looks is never taken for nothing."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.nemo_gym.sessions.hiding import HIDDEN, ON_DEMAND, started
from unbroken.adapters.nemo_gym.sessions.mentions import mentions
from unbroken.adapters.nemo_gym.sessions.states import SessionStates

KEY = b"k" * 32
NOTHING = "nothing of this session was found in the server, so its calls are made again"
Start = Callable[[str], tuple[Any, SessionStates]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    names: list[str] = []

    def build(source: str) -> tuple[Any, SessionStates]:
        server = started(source, tmp_path)
        names.append(type(server).__module__)
        return server, SessionStates(server, key=KEY)

    yield build
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize("shape", HIDDEN)
def test_a_session_that_is_not_found_is_not_read_out_as_empty(start: Start, shape: str) -> None:
    server, states = start(HIDDEN[shape])
    assert states.capability == "replay"
    for session in ("r0", "r1"):
        states.know(session)
        server.seed(session)
        assert states.capture(session) is None
    assert [server.inc("r0"), server.inc("r0"), server.inc("r1")] == [1, 2, 1]
    for session in ("r0", "r1"):
        assert states.capture(session) is None
        assert states.reason(session) == NOTHING
        assert states.digest(session) == ""
    assert states.capability == "replay"
    # Nothing that it shares holds a part of the sessions: another server makes their calls again, and finds nothing there.
    twin, others = start(HIDDEN[shape])
    shared = states.shared()
    if shared is not None:
        others.install_shared(others.decode(shared))
    assert [twin.inc("r0"), twin.inc("r0"), twin.inc("r1")] == [1, 2, 1]


def test_a_map_that_appears_with_the_first_call_is_read_out_from_then_on(start: Start) -> None:
    server, states = start(ON_DEMAND["a dict"])
    capabilities = [states.capability]
    assert states.capture("r0") is None
    assert states.reason("r0") == NOTHING
    server.inc("r0")
    capabilities.append(states.capability)
    encoded = states.capture("r0")
    assert encoded is not None
    assert states.reason("r0") == ""
    empty = states.capture("r1")
    assert empty is not None, "it is known where sessions are, and there it has nothing"
    del server.d["r0"]
    assert states.capture("r0") is not None, "and so has one that is over"
    twin, others = start(ON_DEMAND["a dict"])
    capabilities.append(others.capability)
    others.install("r0", others.decode(encoded))
    others.install("r1", others.decode(empty))
    capabilities.append(others.capability)
    assert capabilities == ["replay", "snapshot", "replay", "snapshot"]
    assert others.agrees("r0", encoded)
    assert others.agrees("r1", empty)
    assert [twin.inc("r0"), twin.inc("r1")] == [2, 1]


def test_nothing_found_agrees_with_an_empty_state_only(start: Start) -> None:
    server, states = start(ON_DEMAND["a dict"])
    server.inc("r0")
    encoded, empty = states.capture("r0"), states.capture("r1")
    assert encoded is not None
    assert empty is not None
    states.remove("r0")
    assert states.digest("r0") == ""
    assert not states.agrees("r0", encoded)
    assert states.agrees("r0", empty)
    server.inc("r1")
    assert not states.agrees("r1", empty)


def test_what_was_not_found_cannot_be_freed_and_is_said_to_be_there_still(start: Start) -> None:
    server, states = start(HIDDEN["a closure"])
    states.know("r0")
    server.inc("r0")
    assert states.left_behind("r0") == ""
    states.remove("r0")
    assert "started again" in states.left_behind("r0")
    assert states.left_behind("r1") == ""
    states.remove("r1")
    assert states.left_behind("r1") == "", "it was never here"
    found, others = start(ON_DEMAND["a dict"])
    found.inc("r0")
    others.know("r0")
    others.remove("r0")
    assert others.left_behind("r0") == ""
    assert found.inc("r0") == 1


def test_who_says_that_a_server_is_stateless_or_replayed_is_believed(start: Start) -> None:
    server, _ = start(HIDDEN["a closure"])
    assert SessionStates(server, key=KEY, capability="stateless").capability == "stateless"
    assert SessionStates(server, key=KEY).reads_sessions
    assert not SessionStates(server, key=KEY, capability="replay").reads_sessions


VERIFYING = {
    "stateless": "def verify(self, x):\n        made = []\n        made.append(x)\n        return made",
    "stateless as its parent is served": "def setup_webserver(self):\n        app = super().setup_webserver()\n        return app",
    "stateless with a cached function": "def verify(self, x):\n        return pattern(x)",
    "replay for a route": "def setup_webserver(self):\n        app = super().setup_webserver()\n        app.post('/t')(self.verify)\n        return app",
    "replay for a route of the parent's": "def setup_webserver(self):\n        return add(super().setup_webserver().router)",
    "replay for sessions": "def seed_session(self, body):\n        return body",
    "replay for steps": "def step(self, body):\n        return body",
    "replay for a new attribute": "def verify(self, x):\n        self.last = x",
    "replay for an attribute that is None": "def verify(self, x):\n        self.none = self.none or x",
    "replay for an attribute by its name": "def verify(self, x):\n        setattr(self, x, 1)",
    "replay for a global": "def verify(self, x):\n        SEEN.append(x)",
    "replay for a global by another name": "def verify(self, x):\n        seen = TREE.get('a') or {}\n        for part in seen['b']:\n            part.add(x)",
    "replay for an attribute by another name": "def verify(self, x):\n        held: dict = self.prompts or {}\n        held[x] = 1",
    "replay for a global that is assigned": "def verify(self, x):\n        global SEEN\n        SEEN = x",
    "replay for a part of a global": "def verify(self, x):\n        TREE['a']['b'][x] = 1",
    "replay for a default": "def verify(self, x, seen=[]):\n        seen.append(x)",
    "replay for an attribute of a function": "def verify(self, x):\n        pattern.last = x",
    "replay for an attribute of the class": "def verify(self, x):\n        Server.last = x",
    "replay for a closure": "def verify(self, x):\n        n = 0\n        def f():\n            nonlocal n\n            n += 1\n        return f",
    "replay for a tool": "def tool(self, x):\n        return x\n    tool.__gym_tool__ = True",
}


@pytest.mark.parametrize("what", VERIFYING)
def test_stateless_is_what_is_proved_to_verify_only(start: Start, what: str) -> None:
    source = f"""
import functools
SEEN = []
TREE = {{"a": {{"b": {{}}}}}}
@functools.lru_cache
def pattern(x):
    return x
def add(app):
    return app
class Server:
    def __init__(self):
        self.config = None
        self.none = None
        self.prompts = {{"a": "b"}}
    {VERIFYING[what]}
"""
    _, states = start(source)
    assert states.capability == what.split(" ", maxsplit=1)[0]


def test_a_class_whose_source_is_not_there_is_not_proved() -> None:
    made: Any = type("Made", (), {"verify": lambda self, x: x, "__module__": "nowhere"})
    assert SessionStates(made(), key=KEY).capability == "replay"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("held[session]", True),
        ("held.get(session_id)", True),
        ("held[request.session[SESSION_ID_KEY]]", True),
        ("held[self._session_id(request)]", True),
        ("held[(session, 1)]", False),
        ("held['a'][session]", False),
        ("held[f'{session}']", False),
        ("held[name]", False),
    ],
)
def test_where_sessions_are_is_known_only_if_the_source_says_it_plainly(
    start: Start, code: str, *, found: bool
) -> None:
    source = f"""
class Server:
    def __init__(self):
        self.config = None
        self.held = {{}}
    def step(self, request, session, session_id, name):
        return self.{code}
"""
    _, states = start(source)
    assert states.has_maps is found
    assert states.capability == ("snapshot" if found else "replay")


def test_an_id_is_found_wherever_it_stands_as_it_is() -> None:
    class Slotted:
        __slots__ = ("part",)

        def __init__(self, *part: str) -> None:
            self.part = part

    around: list[Any] = [1]
    around.append(around)
    holding: list[object] = [
        {("s", 1): 2}, deque([["s", 1]]), Slotted("s"), {"a": {"b": {"s"}}}, [around, "s"], {"room:s": 1}
    ]  # fmt: skip
    for value in holding:
        assert mentions(value, {"s": None}, 100)
    others: list[object] = ["other", {"t": 1}, around, Slotted(), ["s-1"], "was"]
    for value in others:
        assert not mentions(value, {"s": None}, 100)
    assert not mentions([*([0] * 50), "s"], {"s": None}, 10)
