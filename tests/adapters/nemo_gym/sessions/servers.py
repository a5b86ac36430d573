"""Servers as NeMo Gym builds them, as far as their state goes: fields, private attributes, a configuration and a client."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

COUNTS: dict[str, int] = {}
"""A global of a server's module."""


class Config:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class Client:
    def __reduce__(self) -> Any:
        raise TypeError("a client stays where it is")


class Server:
    """What a pydantic model looks like from outside: `model_fields`, and private attributes in a dict of their own."""

    model_fields: dict[str, Any] = {}
    sessions: dict[str, Any]

    def __init__(self, fields: dict[str, Any], private: dict[str, Any] | None = None) -> None:
        vars(self).update({"config": Config(), "server_client": Client(), **fields})
        object.__setattr__(self, "__pydantic_private__", private)

    def seed(self, session: str) -> None:
        self.sessions[session] = 0


@dataclass
class Table:
    rows: list[int]

    def total(self) -> int:
        return sum(self.rows)


@dataclass
class Session:
    """Of a user's own server."""

    table: Table
    rng: random.Random
    total: Any = None
    server: Any = None
    lock: Any = None
    shared: Any = None
    started: float = field(default_factory=time.monotonic)


def session(seed: int, **more: Any) -> Session:
    made = Session(table=Table([seed, 2]), rng=random.Random(seed), **more)
    made.total = made.table.total
    return made


class Clocked:
    """A server whose source keeps moments of the monotonic clock."""

    def __init__(self) -> None:
        self.config = Config()
        self.server_client = Client()
        self.since: dict[str, float] = {}
        self.names: dict[str, Any] = {}
        self.last = 0.0

    def seed(self, session: str) -> None:
        self.since[session] = time.monotonic()
        self.names[session] = {"name": "Ann", "deadline": time.monotonic() + 10.0, "weight": 2.5}
        self.last = time.perf_counter()


class Judge:
    """A server without state: what it keeps it was built with."""

    def __init__(self) -> None:
        self.config = Config()
        self.prompts = {"a": "Is it {x}?"}
        self._gate = asyncio.Semaphore(3)
        self._guard = threading.Lock()

    def verify(self, text: str) -> str:
        prompt = self.prompts["a"]
        return prompt.format(x=text)


class Lazy:
    """A server that makes its maps when it needs them."""

    def __init__(self) -> None:
        self.config = Config()
        self.maps: dict[str, Any] | None = None

    def seed(self, session: str) -> None:
        if self.maps is None:
            self.maps = {}
            self._others: dict[str, int] = {}
        self.maps[session] = 1
        self._others[session] = 2
