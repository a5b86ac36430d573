"""Rollouts that run: one execution of an agent's `/run`, the handlers in it, and whoever waits for what it comes to.

Invariant: a rollout has one execution at a time that may still act. One that was stopped gets no further answer, and
what it comes to is thrown away, whatever its agent makes of the errors it meets.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from unbroken.adapters.nemo_gym.agent.recovering import call_id
from unbroken.adapters.nemo_gym.agent.stamps import NOT_SAID
from unbroken.adapters.nemo_gym.control import Refusal
from unbroken.adapters.nemo_gym.records import Answer, Asked, RolloutRecord
from unbroken.adapters.nemo_gym.serving.asgi import Reply
from unbroken.errors import UnbrokenError


class RolloutStopped(UnbrokenError):
    """Raised inside an agent: its rollout cannot go on. What the agent answers after that is not used."""

    default_hint = "Ask for the rollout again, under its id and a higher attempt."


OWN = "x-unbroken-own"
"""Header of a call that an agent makes to itself: the lineage of its log. Another agent's call is none of its rollouts."""


@dataclass(slots=True, eq=False)
class Execution:
    """One run of a rollout through the agent's own code."""

    agent: str
    """Whose it is, by instance name."""
    record: RolloutRecord
    attempt: int
    policy_version: str
    kept: dict[str, Answer]
    """The answers that were there when it began."""
    in_doubt: dict[str, Asked] = field(default_factory=dict[str, Asked])
    """Calls that had gone out before it began, and were never answered."""
    failure: Refusal | None = None
    """Why it must not be given a reward."""
    outcome: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    pending: dict[str, asyncio.Future[Answer]] = field(default_factory=dict[str, "asyncio.Future[Answer]"])
    """Calls that are under way, for whoever makes the same call again meanwhile."""
    used: set[str] = field(default_factory=set[str])
    """Calls that were answered from what is kept."""
    made: set[str] = field(default_factory=set[str])
    """Calls that went out."""
    acted: bool = False
    """Whether a call to a resources server went out."""
    addresses: dict[str, str] = field(default_factory=dict[str, str])
    """Where this rollout's session of a server lives, if it has moved."""

    @property
    def rollout(self) -> str:
        return self.record.id

    def call_id(self, key: str) -> str:
        """Return the name of one of its calls, for those who are called."""
        return call_id(self.agent, self.record, key)

    def __post_init__(self) -> None:
        for answer in self.kept.values():
            if answer.address:
                self.addresses[answer.server] = answer.address

    def fail(self, refusal: Refusal) -> None:
        """Let nothing more happen. The first reason is the one that is told."""
        if self.failure is None:
            self.failure = refusal
        self.stopped.set()

    def check(self) -> None:
        """Raise RolloutStopped if it must not go on."""
        if self.failure is not None:
            raise RolloutStopped(self.failure.error)

    def unused(self) -> list[Answer]:
        """Return the kept answers that were not asked for."""
        return [answer for key, answer in self.kept.items() if not self._is_used(key)]

    def astray(self) -> list[Answer | Asked]:
        """Return what was done before it began and that it knows nothing of, if it has acted on top of that.

        Its resources servers hold the effects of both: what they say is true of neither.
        """
        if not self.acted:
            return []
        doubtful = [a for key, a in self.in_doubt.items() if key not in self.made and not self._is_used(key)]
        return [*self.unused(), *(asked for asked in doubtful if not asked.model)]

    def _is_used(self, key: str) -> bool:
        """Whether a call was made again. One inside a call that was answered counts as made."""
        return key in self.used or any(key.startswith(f"{used}{_INSIDE}") for used in self.used)


_INSIDE = ">"


@dataclass(slots=True, eq=False)
class Caller:
    """One handler of the agent at work: `/run`, or another that an execution has called (`parent` is the key of that call)."""

    execution: Execution
    scope: str
    parent: str = ""
    counts: Counter[str] = field(default_factory=Counter[str])

    def key(self, server: str, path: str, payload: Any) -> str:
        """Return the key of a call: the same for the k-th identical call of this handler, whenever it runs.

        Agents hand the row on as it came. What a trainer writes into it at each try is no difference: a call of a later
        attempt would else be another one, and be made again.
        """
        said = [self.scope, server, path, _without_try(payload)]
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()
        self.counts[digest] += 1
        key = f"{digest}/{self.counts[digest]}"
        return f"{self.parent}{_INSIDE}{key}" if self.parent else key


def _without_try(payload: Any) -> Any:
    row = payload.get("json") if isinstance(payload, dict) else None
    if not isinstance(row, dict) or NOT_SAID.isdisjoint(row):
        return payload
    return {**payload, "json": {key: value for key, value in row.items() if key not in NOT_SAID}}


CALLER: ContextVar[Caller | None] = ContextVar("unbroken_nemo_gym_caller", default=None)
"""Whose call an outgoing call is."""


class Executions:
    """Those that run now, by rollout."""

    def __init__(self) -> None:
        self._running: dict[str, Execution] = {}

    def __len__(self) -> int:
        return len(self._running)

    def get(self, rollout: str) -> Execution | None:
        return self._running.get(rollout)

    def begin(self, execution: Execution) -> None:
        self._running[execution.rollout] = execution

    def end(self, execution: Execution) -> None:
        if self._running.get(execution.rollout) is execution:
            del self._running[execution.rollout]

    def stop(self, rollout: str, refusal: Refusal) -> None:
        """Take a rollout out; its execution comes to nothing."""
        execution = self._running.pop(rollout, None)
        if execution is not None:
            execution.fail(refusal)

    def stop_all(self, refusal: Refusal) -> None:
        for rollout in list(self._running):
            self.stop(rollout, refusal)
