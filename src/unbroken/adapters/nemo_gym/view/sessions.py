"""One session of a resources server, as the layered document tells it.

Pickled state is named and never loaded: a document is made for reading, and reading must run nothing. Cookies are left
out: whoever has one is that session.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, cast

import msgspec
import zstandard

from unbroken.adapters.nemo_gym.protocol import SessionState, ToolCall, VerificationScores
from unbroken.adapters.nemo_gym.records import Call, Encoded, SessionRecord
from unbroken.adapters.nemo_gym.view import bodies

VERIFY, STEP = "/verify", "/step"
OBJECT = "$object"
MOST = 256 << 20
"""Bytes of a state that a document shows. What was written by ours says its size, so one that does not is not shown."""
WINDOW = 1 << 27
_BOOKKEEPING = "_"
"""Keys that begin so name the rollout, and are no score."""


def session_state(server: str, record: SessionRecord) -> SessionState:
    """Return what is known of one session of `server`."""
    calls = sorted(record.calls, key=lambda call: call.revision)
    state = record.state
    facts: dict[str, Any] = {
        "server": server,
        "rollout": record.rollout,
        "attempt": record.attempt,
        "revision": record.revision,
        "status": record.status,
        "reason": record.reason,
        "digest": "" if state is None else state.digest,
        "form": "none" if state is None else state.form,
        "bytes": 0 if state is None else len(state.data),
        "state_revision": record.state_revision,
        "excluded": [] if state is None else list(state.excluded),
    }
    return SessionState(
        context=None if state is None else context(state),
        tool_history=[tool_call(call) for call in calls],
        verification_scores=scores(calls),
        extensions={"unbroken": facts},
    )


def tool_call(call: Call) -> ToolCall:
    """Return one call. One that came over MCP bears the tool's name and arguments."""
    arguments = bodies.decoded(call.arguments)
    name = call.path.removeprefix("/")
    over_mcp = _mcp(arguments)
    if over_mcp is not None:
        name, arguments = over_mcp
    return ToolCall(
        name=name,
        arguments=arguments,
        result=bodies.decoded(call.result, call.content_type),
        status=call.status,
        succeeded=call.status < 400,
        started=moment(call.started),
        seconds=call.seconds,
        call_id=call.id,
        revision=call.revision,
    )


def scores(calls: list[Call]) -> VerificationScores:
    """Return what verification and single steps have said so far."""
    made = VerificationScores(partial=[])
    for call in calls:
        if call.status >= 400 or call.path not in {VERIFY, STEP}:
            continue
        answer = bodies.as_object(call.result, call.content_type)
        reward = bodies.number(answer.get("reward"))
        if call.path == STEP:
            made.partial += [] if reward is None else [reward]
            continue
        made.reward = reward
        made.components = {
            key: value
            for key, value in ((key, bodies.number(item)) for key, item in answer.items())
            if value is not None and key != "reward" and not key.startswith(_BOOKKEEPING)
        }
    return made


def context(state: Encoded) -> Any:
    """Return the state as plain data if it is JSON, else the names of its classes, its digest and its size.

    Of one that cannot be read, or would be larger than `MOST`, it is said why.
    """
    if state.form == "json":
        try:
            return finite(msgspec.json.decode(_unpacked(state)))
        except (zstandard.ZstdError, msgspec.DecodeError, RecursionError, ValueError) as error:
            return {OBJECT: [], "digest": state.digest, "bytes": len(state.data), "unreadable": str(error)}
    return {OBJECT: list(state.classes), "digest": state.digest, "bytes": len(state.data)}


def _unpacked(state: Encoded) -> bytes:
    """Return the state's JSON. Nobody has checked a seal here: what it says of its size is not believed.

    Raises:
        ValueError: it is larger than `MOST`, or does not say how large it is.
    """
    if not state.packed:
        return state.data
    size = zstandard.frame_content_size(state.data)  # memory would be taken for whatever stands there
    if not 0 <= size <= MOST:
        raise ValueError(f"it would be larger than {MOST >> 20} MiB")
    return zstandard.ZstdDecompressor(max_window_size=WINDOW).decompress(state.data, max_output_size=MOST)


def finite(value: Any) -> Any:
    """Return plain values with NaN and infinities, which JSON lacks, as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, list):
        return [finite(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def moment(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC; nothing of none, and of one that is no date.

    >>> moment(0.0), moment(1_765_000_000.25), moment(1e20)
    ('', '2025-12-06T05:46:40.250Z', '')
    """
    if not seconds:
        return ""
    try:
        made = datetime.fromtimestamp(seconds, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):  # of a clock that was far off
        return ""
    return made.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _mcp(arguments: object) -> tuple[str, Any] | None:
    if not isinstance(arguments, Mapping):
        return None
    request = cast("Mapping[str, Any]", arguments)
    if request.get("jsonrpc") != "2.0" or request.get("method") != "tools/call":
        return None
    asked = request.get("params")
    if not isinstance(asked, Mapping):
        return None
    named = cast("Mapping[str, Any]", asked)
    return str(named.get("name", "")), named.get("arguments")
