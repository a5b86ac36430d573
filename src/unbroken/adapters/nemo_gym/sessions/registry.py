"""A server's tools and its configuration, as fingerprints: what has to be the same for a checkpoint to fit.

Both are the same in every process. The tools are the routes of the application and what it offers over MCP.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from blake3 import blake3

from unbroken.adapters.nemo_gym.control import Tool

_NOT_TOOLS = frozenset({"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"})
_WHERE = frozenset({"host", "port", "entrypoint"})
"""Settings that say where a server runs, not what it does."""


def tools_of(server: object, app: object) -> tuple[Tool, ...]:
    """Return the tools of a server: its routes in their order, then what it offers over MCP."""
    return (*_routes(app), *_mcp_tools(server))


def config_hash(server: object) -> str:
    """Return a digest of a server's settings, without those that say where it runs."""
    config: Any = getattr(server, "config", None)
    if config is None:
        return ""
    values: Any = config.model_dump(mode="python") if hasattr(config, "model_dump") else config
    if isinstance(values, Mapping):
        values = {
            key: item for key, item in cast("Mapping[object, object]", values).items() if key not in _WHERE
        }
    return blake3(msgspec.json.encode(_canonical(values), order="sorted")).hexdigest()


def _routes(app: object) -> Iterator[Tool]:
    for route in cast("list[Any]", getattr(app, "routes", [])):
        path = getattr(route, "path", "")
        if not path or path in _NOT_TOOLS:
            continue
        schema = _digest(_body_schema(route))
        methods = getattr(route, "methods", None)
        name = str(getattr(route, "name", "") or path)
        for method in sorted(methods) if methods else ("MOUNT",):
            if method != "HEAD":
                yield Tool(name=name, path=path, method=method, schema=schema)


def _mcp_tools(server: object) -> Iterator[Tool]:
    for name in dir(type(server)):
        member: Any = inspect.getattr_static(type(server), name, None)
        if getattr(member, "__gym_tool__", False):
            yield Tool(name=name, path="/mcp", method="MCP", schema=_digest(_signature(member)))


def _body_schema(route: Any) -> Any:
    """Return the JSON Schema of a route's body; None if it takes none."""
    field: Any = getattr(route, "body_field", None)
    if field is None:
        return None
    annotation: Any = getattr(getattr(field, "field_info", None), "annotation", None)
    return annotation.model_json_schema() if hasattr(annotation, "model_json_schema") else str(annotation)


def _signature(function: Any) -> list[tuple[str, str]]:
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    return [
        (name, f"{_type_name(parameter.annotation)}={'' if parameter.default is inspect.Parameter.empty else repr(parameter.default)}")
        for name, parameter in parameters.items()
        if name not in {"self", "session_id"}
    ]  # fmt: skip


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _digest(schema: Any) -> str:
    if schema is None:
        return ""
    return blake3(msgspec.json.encode(_canonical(schema), order="sorted")).hexdigest(length=16)


def _canonical(value: Any) -> Any:
    """Return a value that JSON says the same in every process: no addresses, sets in order."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in cast("list[Any]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted(msgspec.json.encode(_canonical(item)).decode() for item in cast("set[Any]", value))
    if hasattr(value, "model_dump"):
        return _canonical(value.model_dump(mode="python"))
    if isinstance(value, type) or callable(value):
        return (
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        )
    text = str(value)
    return text if " at 0x" not in text else f"{type(value).__module__}.{type(value).__qualname__}"
