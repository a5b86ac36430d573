"""The layered document of a checkpoint's component: for people, for comparisons and for other programs.

In a checkpoint the state of NeMo Gym lies in segments, in the order in which it changed; here the same facts are put in the
order in which they are understood. Nothing is restored from the document, and making it runs nothing: pickles are named.

Not promised: that a document says where two pickled states differ. It holds their digests, which say that they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Status, Tool
from unbroken.adapters.nemo_gym.protocol import Environment, GymState, Metadata, ResourceState, SessionState
from unbroken.adapters.nemo_gym.trainer.payload import Payload, read_payload
from unbroken.adapters.nemo_gym.trainer.segments import read_segments
from unbroken.adapters.nemo_gym.view.ledger import LedgerFacts, read_ledger
from unbroken.adapters.nemo_gym.view.rollouts import agent_state
from unbroken.adapters.nemo_gym.view.sessions import moment, session_state
from unbroken.errors import CorruptObject
from unbroken.format.meta import Meta
from unbroken.state.snapshot import Component

T = TypeVar("T")

_JOIN = "+"
PROCESS = "process"
"""Where a document keeps what is a matter of one process or one trainer, and no state of the environment."""


def layered(component: Component, meta: Meta | None = None) -> GymState:
    """Return the document of a checkpoint's component. Without the checkpoint's `meta`, step and reason are unknown.

    Raises:
        CorruptObject: the component is no state of NeMo Gym, or a part of it cannot be read.
        UnsupportedFormat: it is of another major version.
    """
    return document(read_payload(component), meta)


def document(payload: Payload, meta: Meta | None = None) -> GymState:
    """Return the document of what a component holds; see `layered`."""
    state = GymState(
        version=payload.protocol,
        timestamp=moment(payload.time),
        environment=Environment(env_id="", config_hash="", session_states={}),
        agents={},
        resources={},
        extensions={"unbroken": {"models": {}}},
    )
    hashes: dict[str, str] = {}
    ledger = read_ledger(payload.ledger)
    for name, server in sorted(payload.servers.items()):
        status = server.status
        found = sorted(read_segments(server.segments).items())
        if status.role == "agent":
            rollouts = [_read(records.rollout, name, key, data) for key, data in found]
            agent = state.agents[name] = agent_state(rollouts, None if ledger is None else ledger.of(name))
            agent.extensions["unbroken"][PROCESS] = caller_process(status)
        elif status.role == "model":
            state.extensions["unbroken"]["models"][name] = {PROCESS: process(status)}
        else:
            hashes[name] = status.config_hash
            state.resources[name] = resource_state(status)
            for key, data in found:
                record = _read(records.session, name, key, data)
                _put(state.environment.session_states, name, record.id, session_state(name, record))
    state.environment.env_id = _JOIN.join(hashes)
    state.environment.config_hash = _JOIN.join(hashes.values())
    state.metadata = metadata(meta, ledger)
    return state


def resource_state(status: Status) -> ResourceState:
    """Return what is known of a resources server beside its sessions."""
    return ResourceState(
        connection_state={
            "capability": status.capability,
            "exclusions": list(status.exclusions),
            **process(status),
        },
        cache_data=dict(status.cache),
        tool_registry=[_tool(tool) for tool in sorted(status.tools, key=lambda tool: (tool.path, tool.name))],
        extensions={
            "unbroken": {
                "class": status.class_name,
                "config_hash": status.config_hash,
                "versions": dict(status.versions),
            }
        },
    )


def caller_process(status: Status) -> dict[str, Any]:
    """Return what is a matter of one process of a server that asks others: also what it has asked for."""
    asked = {"model_calls": status.model_calls, "replayed": status.replayed, "unused": list(status.unused)}
    return {**process(status), **asked}


def process(status: Status) -> dict[str, Any]:
    """Return what is a matter of one process of a server: which one it is, and how it came back."""
    recovery = status.recovery
    return {
        "phase": status.phase,
        "pid": status.pid,
        "lineage": status.lineage,
        "epoch": status.epoch,
        "recovery": {
            "source": recovery.source,
            "sessions": recovery.sessions,
            "rollouts": recovery.rollouts,
            "redone": recovery.redone,
            "listed": [_plain(one) for one in recovery.listed],
            "notes": list(recovery.notes),
        },
    }


def metadata(meta: Meta | None, ledger: LedgerFacts | None) -> Metadata:
    """Return how far training had come, and why it was saved."""
    episodes = 0 if meta is None else meta.episodes
    return Metadata(
        total_steps=0 if meta is None else meta.step,
        completed_episodes=episodes if ledger is None else ledger.episodes,
        average_reward=None if ledger is None else ledger.average_reward,
        checkpoint_reason="" if meta is None else meta.reason,
    )


def _tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "path": tool.path, "method": tool.method, "schema": tool.schema}


def _plain(struct: msgspec.Struct) -> dict[str, Any]:
    return cast("dict[str, Any]", msgspec.to_builtins(struct))


def _put(states: dict[str, SessionState], server: str, session: str, state: SessionState) -> None:
    """Add a session. The same id on two servers: the later one gets its server's name in front."""
    states[f"{server}/{session}" if session in states else session] = state


def _read(read: Callable[[bytes], T], server: str, key: str, data: bytes) -> T:
    try:
        return read(data)
    except msgspec.DecodeError as error:
        raise CorruptObject(
            f"The record {key} of {server} cannot be read: {error}.", hint="Take an older checkpoint."
        ) from error
