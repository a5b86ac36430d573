"""The layered document of NeMo Gym for a person: what there is, then session by session, one line a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from unbroken.adapters.nemo_gym import protocol
from unbroken.adapters.nemo_gym.protocol import AgentState, GymState, ResourceState, SessionState, ToolCall
from unbroken.report.quantity import counted, number, seconds
from unbroken.report.shown import Parts, Shown
from unbroken.report.table import Cell, Column, Table

SESSIONS = 20
CALLS = 20
"""Of so many sessions, and so many calls of each, a person sees the rest if they ask for all."""
WIDTH = 48
_LONG = 40
_EVERY_SERVERS = frozenset({"/", "/aggregate_metrics", "/seed_session", "/verify"})
_MOOD: Mapping[str, Literal["good", "quiet", "bad"]] = {
    "refused": "bad",
    "retired": "quiet",
    "moved": "quiet",
}


def gym_shown(state: GymState, *, every: bool) -> Shown:
    """Return the document as tables, and as plain data for a machine."""
    sessions = state.environment.session_states
    seen = list(sessions.items()) if every else list(sessions.items())[:SESSIONS]
    parts: Parts = [facts_table(state), "", servers_table(state)]
    if state.agents:
        parts += ["", agents_table(state)]
    for session, held in seen:
        parts += ["", *session_parts(session, held, every=every)]
    if len(seen) < len(sessions):
        left = len(sessions) - len(seen)
        parts += ["", f"{counted(left, 'more session')} (--all)"]
    return Shown(parts, protocol.plain(state))


def facts_table(state: GymState) -> Table:
    meta, environment = state.metadata, state.environment
    table = Table((Column("environment"), Column(environment.env_id or "no resources server")))
    table.add("configuration", environment.config_hash or "-")
    table.add(
        "saved", f"{state.timestamp or '-'}{f', because: {why}' if (why := meta.checkpoint_reason) else ''}"
    )
    table.add("step", number(meta.total_steps))
    mean = "" if meta.average_reward is None else f", mean reward {meta.average_reward:.6g}"
    table.add("episodes", f"{number(meta.completed_episodes)}{mean}")
    return table


def servers_table(state: GymState) -> Table:
    """Return resources servers and model servers, one a line."""
    held: dict[str, int] = {}
    for session in state.environment.session_states.values():
        name = str(facts_of(session).get("server", ""))
        held[name] = held.get(name, 0) + 1
    columns = (
        Column("server"),
        Column("class"),
        Column("capability"),
        Column("sessions", numeric=True),
        Column("tools"),
    )
    table = Table(columns)
    for name, server in state.resources.items():
        table.add(name, *_server_cells(server), number(held.get(name, 0)), cut(tools(server), WIDTH))
    ours = cast("dict[str, Any]", state.extensions.get("unbroken", {}))
    for name in cast("dict[str, Any]", ours.get("models", {})):
        table.add(name, "model", "-", "-", "-")
    return table


def agents_table(state: GymState) -> Table:
    columns = (
        Column("agent"), Column("rollouts", numeric=True), Column("finished", numeric=True),
        Column("model calls", numeric=True), Column("policy"), Column("exploration"), Column("mean reward", numeric=True),
    )  # fmt: skip
    table = Table(columns)
    for name, agent in state.agents.items():
        rollouts = rollouts_of(agent)
        rewards = agent.reward_buffer
        table.add(
            name,
            number(len(rollouts)),
            number(sum(bool(of.get("finished")) for of in rollouts.values())),
            str(agent.policy_state.get("model_calls", "-")),
            cut(", ".join(map(str, agent.policy_state.get("policy_versions", ()))) or "-", WIDTH),
            cut(
                ", ".join(f"{key} {one(value)}" for key, value in agent.exploration_params.items()) or "-",
                WIDTH,
            ),
            f"{sum(rewards) / len(rewards):.6g}" if rewards else "-",
        )
    return table


def session_parts(session: str, state: SessionState, *, every: bool, width: int = WIDTH) -> Parts:
    """Return one session: a line of facts, what the server holds of it, and its calls."""
    parts: Parts = [heading(session, state)]
    if state.context is not None:
        parts.append(f"  holds {cut(one(state.context), 2 * width)}")
    calls = state.tool_history
    seen = calls if every else calls[-CALLS:]
    if len(seen) < len(calls):
        parts.append(f"  {counted(len(calls) - len(seen), 'earlier call')} (--all)")
    if seen:
        parts.append(calls_table(seen, width=width))
    return parts


def heading(session: str, state: SessionState) -> str:
    """Return what is known of a session, in one line."""
    facts = facts_of(state)
    scores = state.verification_scores
    words = [f"on {facts.get('server', '?')}"]
    if facts.get("rollout"):
        attempt = facts.get("attempt", 0)
        words.append(f"rollout {facts['rollout']}" + (f", attempt {attempt}" if attempt else ""))
    words += [str(facts.get("status", "")), counted(len(state.tool_history), "call")]
    if scores.reward is not None:
        words.append(f"reward {scores.reward:.6g}")
    elif scores.partial:
        words.append(f"rewards of steps {sum(scores.partial):.6g} in {len(scores.partial)}")
    words += [f"{key} {value:.6g}" for key, value in list(scores.components.items())[:4]]
    if facts.get("reason"):
        words.append(str(facts["reason"]))
    return f"session {session}: {', '.join(word for word in words if word)}"


def calls_table(calls: Sequence[ToolCall], *, width: int = WIDTH) -> Table:
    columns = (
        Column("call", numeric=True), Column("tool"), Column("status", numeric=True), Column("took", numeric=True),
        Column("arguments"), Column("result"),
    )  # fmt: skip
    table = Table(columns)
    for call in calls:
        status = str(call.status)
        table.add(
            number(call.revision),
            call.name,
            status if call.succeeded else Cell(status, "bad"),
            seconds(call.seconds),
            cut(one(short_first(call.arguments)), width),
            cut(one(short_first(call.result)), width),
        )
    return table


def sessions_table(rows: Iterable[Sequence[str]]) -> Table:
    """Return the sessions of several places, one a line."""
    columns = [
        Column("server"), Column("session"), Column("rollout"), Column("attempt", numeric=True),
        Column("calls", numeric=True), Column("status"), Column("last call"), Column("digest"),
    ]  # fmt: skip
    table = Table(columns)
    status = [column.name for column in columns].index("status")
    for row in rows:
        cells: list[str | Cell] = list(row)
        mood = _MOOD.get(row[status])
        if mood is not None:
            cells[status] = Cell(row[status], mood)
        table.add(*cells)
    return table


def tools(server: ResourceState) -> str:
    """Return the names of a server's tools, without what every server has."""
    own = [tool for tool in server.tool_registry if tool.get("path") not in _EVERY_SERVERS]
    names = [str(tool.get("name", "")) for tool in own]
    return ", ".join(name for name in names if name) or "-"


def facts_of(state: SessionState) -> dict[str, Any]:
    """Return what Unbroken knows of a session beside the protocol's own fields."""
    return cast("dict[str, Any]", state.extensions.get("unbroken", {}))


def rollouts_of(agent: AgentState) -> dict[str, dict[str, Any]]:
    """Return what is known of an agent's rollouts, by their ids."""
    ours = cast("dict[str, Any]", agent.extensions.get("unbroken", {}))
    return cast("dict[str, dict[str, Any]]", ours.get("rollouts", {}))


def one(value: object) -> str:
    """Return a plain value in one line."""
    return (
        value.replace("\n", "⏎")
        if isinstance(value, str)
        else msgspec.json.encode(value, enc_hook=str).decode()
    )


def short_first(value: Any) -> Any:
    """Return a value whose long entries stand last: a row's own fields tell more than the conversation that it begins with.

    >>> list(short_first({"conversation": "x" * 50, "count": 3}))
    ['count', 'conversation']
    """
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value).items()
    return dict(sorted(entries, key=lambda entry: len(one(entry[1])) > _LONG))


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` characters.

    >>> cut("abcdef", 4), cut("abc", 4)
    ('abc…', 'abc')
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def _server_cells(server: ResourceState) -> tuple[str, str]:
    ours = cast("dict[str, Any]", server.extensions.get("unbroken", {}))
    excluded = server.connection_state.get("exclusions") or ()
    capability = str(server.connection_state.get("capability", "-"))
    return str(ours.get("class", "")), capability + (f" ({len(excluded)})" if excluded else "")
