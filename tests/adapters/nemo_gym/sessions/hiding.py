"""Servers that keep something of a session where nobody looks for it, or make the place for it at the first call.

Each is the source of a module with a class `Server`: `seed(session)` begins, `inc(session)` counts and returns the count. The
source is that of a new module each time, as in another process.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

_BEFORE = """
import functools
from collections import deque
class Config: ...
"""
_SERVER = """
class Server:
    def __init__(self):
        self.config = Config()
        {built}
        self.setup_webserver()
    def setup_webserver(self):
        {setup}
    def seed(self, session):
        pass
    def inc(self, session):
        {inc}
"""


def _source(inc: str, *, before: str = "", built: str = "pass", setup: str = "pass") -> str:
    lines = inc.strip().replace("\n", "\n        ")
    return _BEFORE + before + _SERVER.format(built=built, setup=setup, inc=lines)


_FOUND = "for entry in held:\n    if entry[0] == session:\n        entry[1] += 1\n        return entry[1]\nheld.append([session, 1])\nreturn 1"
ON_DEMAND = {
    "a dict": _source(
        "self.d = self.d or {}\nself.d[session] = self.d.get(session, 0) + 1\nreturn self.d[session]",
        built="self.d = None",
    ),
}
"""The map appears with the first call, and is found from then on."""
HIDDEN = {
    "a list made on demand": _source("self.d = held = self.d or []\n" + _FOUND, built="self.d = None"),
    "keys that are tuples": _source(
        "self.d = self.d or {}\nkey = (session, 'n')\nself.d[key] = self.d.get(key, 0) + 1\nreturn self.d[key]",
        built="self.d = None",
    ),
    "keys made of the id": _source(
        "session = f'{session}:n'\nself.d[session] = self.d.get(session, 0) + 1\nreturn self.d[session]",
        built="self.d = {}",
    ),
    "a global list": _source("held = HELD\n" + _FOUND, before="HELD = []\n"),
    "a global deque": _source("held = HELD\n" + _FOUND, before="HELD = deque()\n"),
    "an object with slots": _source(
        "BOX.d[session] = BOX.d.get(session, 0) + 1\nreturn BOX.d[session]",
        before="class Box:\n    __slots__ = ('d',)\n    def __init__(self):\n        self.d = {}\nBOX = Box()\n",
    ),
    "a global dict below two others": _source(
        "d = CACHE['rooms']['a']\nd[session] = d.get(session, 0) + 1\nreturn d[session]",
        before="CACHE = {'rooms': {'a': {}}}\n",
    ),
    "a closure": _source(
        "return self.app(session)",
        setup="d = {}\n        def inc(s):\n            d[s] = d.get(s, 0) + 1\n            return d[s]\n        self.app = inc",
    ),
    "the state of the application": _source(
        "d = self.app.state.d\nd[session] = d.get(session, 0) + 1\nreturn d[session]",
        before="class Box: ...\n",
        setup="self.app = Box()\n        self.app.state = Box()\n        self.app.state.d = {}",
    ),
    "a cached function": _source(
        "d = room(session)\nd['n'] = d.get('n', 0) + 1\nreturn d['n']",
        before="@functools.lru_cache\ndef room(s):\n    return {}\n",
    ),
    "a default of a parameter": _source(
        "return inc(session)", before="def inc(s, d={}):\n    d[s] = d.get(s, 0) + 1\n    return d[s]\n"
    ),
    "an attribute of a function": _source(
        "inc.d[session] = inc.d.get(session, 0) + 1\nreturn inc.d[session]",
        before="def inc(): ...\ninc.d = {}\n",
    ),
}
"""Nothing of a session is found, ever."""

_numbers = itertools.count()


def started(source: str, directory: Path) -> Any:
    """Return a server of the source, in a module of its own, which the caller takes out of `sys.modules`."""
    name = f"hiding_{next(_numbers)}"
    path = directory / name / "app.py"
    path.parent.mkdir()
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.Server()
