"""Puts the journal around an agent: behind its client when it is built, in front of its application when that is set up.

Nothing of the agent's class is changed. Its log is opened with its application, since a dry run builds servers too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from unbroken.adapters.nemo_gym.agent.agent import Agent
from unbroken.adapters.nemo_gym.agent.client import Seat, journalling
from unbroken.adapters.nemo_gym.agent.journal import Identity, Journal
from unbroken.adapters.nemo_gym.agent.middleware import AgentMiddleware
from unbroken.adapters.nemo_gym.agent.operations import AgentOperations
from unbroken.adapters.nemo_gym.agent.outgoing import Others
from unbroken.adapters.nemo_gym.options import Options
from unbroken.adapters.nemo_gym.serving.controls import Controls
from unbroken.adapters.nemo_gym.sessions.registry import config_hash
from unbroken.engine.saying import say
from unbroken.errors import ConfigError, InternalError, StoreError

_MODELS = "responses_api_models"

_seats: WeakKeyDictionary[type, Seat] = WeakKeyDictionary()
"""By the class that was made for a client."""
_agents: WeakKeyDictionary[type, Agent] = WeakKeyDictionary()


def prepare(server: Any, options: Options) -> None:  # noqa: ARG001  (the log is opened by `attach`)
    """Put the journalling client in the place of `server.server_client`."""
    client, seat = journalling(server.server_client)
    _seats[type(client)] = seat
    server.server_client = client


def attach(server: Any, app: Any, options: Options) -> None:
    """Open the log of an agent that `prepare` has seen, and put the middleware in front of `app`.

    Raises:
        ConfigError: it has several workers.
        RunBusy, StoreError: its log cannot be used.
    """
    if (getattr(server.config, "num_workers", None) or 1) > 1:
        raise ConfigError(
            f"The agent {server.config.name!r} has {server.config.num_workers} workers, and a rollout's calls come to any of them.",
            hint="Set num_workers: 1. One process runs thousands of rollouts.",
        )
    client = type(server.server_client)
    seat = _seats.get(client)
    if seat is None:
        raise InternalError("The agent's client was exchanged after `prepare`.")
    identity = Identity(
        server=str(server.config.name), class_name=type(server).__name__, config_hash=config_hash(server)
    )
    journal = Journal.open(options.directory, key=options.key, identity=identity)
    try:
        agent = Agent(journal, others_of(server), opened=options.start == "open", patience=options.patience)
    except BaseException:
        with suppress(StoreError):  # what went wrong first is told
            journal.close()
        raise
    seat.outgoing = agent.outgoing
    _agents[client] = agent
    operations = AgentOperations(agent, identity)
    controls = Controls(options.token, operations.handlers(), operations.epoch)
    app.add_middleware(AgentMiddleware, agent=agent, controls=controls)
    _say(identity.server, journal, options)


def agent_of(server: Any) -> Agent:
    """Return what was attached to an agent."""
    return _agents[type(server.server_client)]


def others_of(server: Any) -> Others:
    """Tell model servers from others: by the references of an agent's own configuration, and by the global one."""
    models: set[str] = set()
    for value in vars(server.config).values():
        if getattr(value, "type", "") == _MODELS:
            models.add(str(value.name))
    instances: Any = getattr(server.server_client, "global_config_dict", None) or {}
    for name in instances:
        part = instances[name]
        if hasattr(part, "keys") and _MODELS in part:
            models.add(str(name))
    return Others(own=str(server.config.name), models=frozenset(models))


def _say(name: str, journal: Journal, options: Options) -> None:
    finished = sum(1 for record in journal.records.values() if record.status)
    lines = [
        f"{name}: {finished} finished and {len(journal.records) - finished} unfinished rollouts are kept in {options.directory}"
    ]
    lines += [f"{name}: {note}" for note in journal.recovery.notes]
    lines += [f"{name}: {one.id}: {'; '.join(one.reasons)}" for one in journal.recovery.listed]
    lines += [
        f"{name}: {call.id} {call.server}{call.path} was under way" for call in journal.recovery.in_doubt
    ]
    say(*(f"unbroken: {line}" for line in lines))
