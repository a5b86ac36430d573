"""The layered document as a tree of plain nodes, so that two checkpoints are compared by what they mean.

A session's id may be drawn at random when it begins, so that two runs which do the same have other ids: here a session is known by
its server and its rollout, where it has one. What is a matter of processes stands in places that `capture/volatile.py` names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from unbroken.adapters.nemo_gym import protocol
from unbroken.adapters.nemo_gym.protocol import GymState, SessionState
from unbroken.state.nodes import Dict, Float, Int, List, Value
from unbroken.state.snapshot import Component

ROOT = "gym"
_WORD = 1 << 63


def as_component(state: GymState, *, name: str = ROOT) -> Component:
    """Return the document as a component called `name`, with one root, `gym`."""
    document = protocol.plain(state)
    names = comparable_names(state.environment.session_states)
    environment = document["environment"]
    sessions = environment["session_states"]
    environment["session_states"] = {known: sessions[session] for session, known in names.items()}
    return Component(name, {ROOT: node(document)})


def comparable_names(sessions: Mapping[str, SessionState]) -> dict[str, str]:
    """Return for each session a name that is the same in another run which did the same, in the order of these names."""
    of: dict[str, list[str]] = {}
    for session, state in sessions.items():
        facts = cast("dict[str, Any]", state.extensions.get("unbroken", {}))
        rollout, server = str(facts.get("rollout", "")), str(facts.get("server", ""))
        of.setdefault(f"{server}/{rollout}" if rollout else session, []).append(session)
    found: dict[str, str] = {}
    for known, same in sorted(of.items()):
        same.sort(key=lambda session: _began(sessions[session]))
        for number, session in enumerate(same, 1):
            found[session] = known if number == 1 else f"{known}#{number}"
    return found


def node(value: Any) -> Value:
    """Return a plain JSON value as a node."""
    if isinstance(value, dict):
        return Dict(v={key: node(item) for key, item in cast("dict[str, Any]", value).items()})
    if isinstance(value, list):
        return List(v=[node(item) for item in cast("list[object]", value)])
    if isinstance(value, int) and not isinstance(value, bool) and not -_WORD <= value < _WORD:
        return Int(v=hex(value))
    if isinstance(value, float) and not math.isfinite(value):
        return Float(v=repr(value))
    return cast("Value", value)


def _began(state: SessionState) -> str:
    return state.tool_history[0].started if state.tool_history else ""
