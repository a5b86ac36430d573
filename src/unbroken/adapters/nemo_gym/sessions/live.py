"""Which values are alive: they belong to one process, and a copy of them in another is worth nothing.

They are told by the names of their classes; nothing is imported for it. Not promised: that a class of which nobody has heard is
recognised. Pickling fails then, and says where.
"""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Mapping
from typing import Any, cast

_KINDS: dict[str, str] = {
    "asyncio.locks.Lock": "a lock",
    "asyncio.locks.Event": "an event",
    "asyncio.locks.Condition": "a condition",
    "asyncio.locks.Semaphore": "a semaphore",
    "asyncio.locks.Barrier": "a barrier",
    "_thread.lock": "a lock",
    "_thread.RLock": "a lock",
    "threading.Condition": "a condition",
    "threading.Semaphore": "a semaphore",
    "threading.Event": "an event",
    "threading.Barrier": "a barrier",
    "threading._RLock": "a lock",
    "threading.Thread": "a thread",
    "threading.local": "thread-local data",
    "_thread._local": "thread-local data",
    "_asyncio.Future": "a future",
    "asyncio.futures.Future": "a future",
    "asyncio.tasks.Task": "a task",
    "asyncio.events.AbstractEventLoop": "an event loop",
    "asyncio.events.Handle": "a timer",
    "asyncio.subprocess.Process": "a process",
    "asyncio.streams.StreamReader": "a connection",
    "asyncio.streams.StreamWriter": "a connection",
    "concurrent.futures._base.Future": "a future",
    "concurrent.futures._base.Executor": "an executor",
    "multiprocessing.process.BaseProcess": "a process",
    "multiprocessing.connection._ConnectionBase": "a connection",
    "multiprocessing.context.BaseContext": "a factory of processes",
    "subprocess.Popen": "a process",
    "_socket.socket": "a socket",
    "ssl.SSLContext": "a connection",
    "_ssl._SSLContext": "a connection",
    "_io._IOBase": "an open file",
    "logging.Logger": "a logger",
    "logging.LoggerAdapter": "a logger",
    "logging.Handler": "a logger",
    "_contextvars.ContextVar": "a context variable",
    "_contextvars.Context": "a context",
    "_contextvars.Token": "a context",
    "weakref.WeakKeyDictionary": "weak references",
    "weakref.WeakValueDictionary": "weak references",
    "_weakrefset.WeakSet": "weak references",
    "weakref.ReferenceType": "a weak reference",
    "starlette.applications.Starlette": "an application",
    "fastapi.routing.APIRouter": "an application",
    "nemo_gym.server_utils.ServerClient": "a client",
    "nemo_gym.openai_utils.NeMoGymAsyncOpenAI": "a client",
    "sqlite3.Connection": "a connection",
    "sqlite3.Cursor": "a connection",
}
_MODULES = re.compile(
    r"(?P<client>aiohttp\.(client|connector|cookiejar)|httpx\._client|openai\.(_client|_base_client|resources)"
    r"|anthropic\.(_client|_base_client|resources)|requests\.(sessions|adapters)|urllib3|grpc|redis|docker|botocore|boto3"
    r"|tavily|mcp\.(client|server)|fastmcp|google\.cloud|pymongo|elasticsearch|paramiko)(\.|$)"
    r"|(?P<ray>ray)(\.|$)"
    r"|(?P<process>multiprocessing)(\.|$)"
    r"|(?P<engine>sqlalchemy\.(engine|orm\.session)|psycopg|psycopg2|asyncpg)(\.|$)"
    r"|(?P<sandbox>nemo_gym\.sandbox|e2b|modal|daytona|playwright|selenium)(\.|$)"
)
_WORDS = {
    "client": "a client",
    "ray": "a Ray handle",
    "process": "what processes share",
    "engine": "a connection",
    "sandbox": "a sandbox",
}
_PLAIN = (str, bytes, int, float, bool, type(None), complex)
LOCKS = frozenset({"a lock", "an event", "a condition", "a semaphore"})
"""Kinds that can be made anew where nobody holds or awaits one."""
COORDINATORS = frozenset({"a future", "a task", "an event", "a condition", "a barrier"})
"""Kinds by which requests of several sessions wait for each other."""
_LOOKED_AT = 64

_found: dict[type, str] = {}


def kind_of(value: object) -> str:
    """Return what a value is in two or three words, if it is alive; else ""."""
    cls = type(value)
    kind = _found.get(cls)
    if kind is None:
        kind = _found[cls] = _kind(cls)
    return kind


def held_kind(value: object) -> str:
    """Return what a value is if it is alive or a container of such values only; else ""."""
    if isinstance(value, _PLAIN):
        return ""
    kind = kind_of(value)
    if kind:
        return kind
    if isinstance(value, Mapping):
        return _all(tuple(cast("Mapping[Any, object]", value).values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return _all(cast("Collection[object]", value))
    return ""


def name_of(cls: type) -> str:
    """Return the name of a class as people and records read it."""
    return f"{cls.__module__}.{cls.__qualname__}" if cls.__module__ != "builtins" else cls.__qualname__


def _all(values: Collection[object]) -> str:
    if not values:
        return ""
    kind = ""
    for number, value in enumerate(values):
        if number == _LOOKED_AT:
            break
        kind = kind_of(value)
        if not kind:
            return ""
    return f"every entry is {kind}"


def _kind(cls: type) -> str:
    if issubclass(cls, type):
        return "a class"
    if issubclass(cls, types.ModuleType):
        return "a module"
    if issubclass(cls, (types.FunctionType, types.BuiltinFunctionType)):
        return "a function"
    if issubclass(cls, types.GeneratorType):
        return "a generator"
    if issubclass(cls, (types.CoroutineType, types.AsyncGeneratorType)):
        return "a coroutine"
    for base in cls.__mro__:
        kind = _KINDS.get(f"{base.__module__}.{base.__qualname__}")
        if kind is not None and base is not object:
            if kind == "an open file" and cls.__module__ == "_io" and cls.__name__ in {"StringIO", "BytesIO"}:
                return ""
            return kind
        match = _MODULES.match(base.__module__)
        if match is not None and match.lastgroup is not None:
            groups = {name for name, found in match.groupdict().items() if found}
            return _WORDS[groups.pop()]
    return ""
