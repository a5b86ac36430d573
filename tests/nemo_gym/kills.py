"""Carries an episode out, undisturbed or with a kill in the middle, and says all that a comparison needs."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.nemo_gym.episodes import Episode
from tests.nemo_gym.stack import MODEL, PATIENCE, Stack
from unbroken.adapters.nemo_gym import control, words
from unbroken.adapters.nemo_gym.control import InFlight, Recovered
from unbroken.repo.process import identify

KILLED = ("res", "agent", "all")
"""What is killed: the resources server, the agent, or all with the model."""
_NUMBERS = itertools.count(1)
"""Of rollouts, each of which is another: also on servers that have met former ones."""
_NOT_COMPARED = {words.ROLLOUT_KEY, words.ATTEMPT_KEY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a rollout went. `digests` are its session's, at each turn of the model, and at the end."""

    answer: Mapping[str, Any]
    digests: tuple[str, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """How one went that was interrupted. `digests` are those before the kill, after the restart, and at the end."""

    answer: Mapping[str, Any]
    digests: tuple[str, str, str]
    calls: tuple[int, ...]
    in_doubt: tuple[InFlight, ...]
    """Of the agent, if it was killed."""
    interrupted: tuple[InFlight, ...]
    """Of the resources server, if it was killed."""
    recovered: Recovered | None
    """Of the session, if it was worth a word."""


class Rig:
    """Runs rollouts of one episode on a stack that stays, each under an id of its own."""

    def __init__(self, stack: Stack, episode: Episode) -> None:
        self.stack = stack
        self.episode = episode

    def undisturbed(self) -> Course:
        """Roll out, looking at the session's state while each turn of the model is held."""
        stack, turns = self.stack, range(self.episode.turns)
        rollout, row = self.next_row()
        before = len(stack.model_calls())
        for turn in turns:
            stack.hold(turn)
        answer = stack.run_later(row)
        digests: list[str] = []
        for turn in turns:
            self.await_calls(before + turn + 1)
            digests.append(self.digest(rollout))
            stack.let_go(turn)
        result = answer.result(PATIENCE)
        digests.append(self.digest(rollout))
        return Course(
            answer=compared(result), digests=tuple(digests), calls=tuple(stack.model_calls()[before:])
        )

    def killed(self, turn: int, what: str, *, missed: bool = False, supervised: bool = False) -> Killed:
        """Roll out, and kill while the model has been asked for a turn.

        `missed`: the rollout goes on before the servers are back. `supervised`: nobody starts them but the supervisor.
        """
        stack = self.stack
        rollout, row = self.next_row()
        before = len(stack.model_calls())
        stack.hold(turn)
        answer = stack.run_later(row)
        self.await_calls(before + turn + 1)
        first = self.digest(rollout)
        if supervised:
            self._kill_and_await(what)
        else:
            stack.kill(what)
            if missed:
                stack.let_go(turn)
            stack.restart(what)
        if not missed:
            if what != "res":
                self.await_calls(before + turn + 2)  # asked for once more, and held again
            second = self.digest(rollout)
            stack.let_go(turn)
        else:
            second = first
        return self._ended(answer, rollout, what, before, (first, second))

    def asked_again(self, turn: int) -> Killed:
        """Roll out, kill the agent, and ask for the rollout under a later attempt, as a trainer does that was killed too."""
        stack = self.stack
        rollout, row = self.next_row()
        before = len(stack.model_calls())
        stack.hold(turn)
        first = stack.run_later({**row, words.ATTEMPT_KEY: 0}, until_answered=False)
        self.await_calls(before + turn + 1)
        digest = self.digest(rollout)
        stack.kill("agent")
        assert isinstance(first.exception(PATIENCE), httpx.TransportError)
        stack.restart("agent")
        answer = stack.run_later({**row, words.ATTEMPT_KEY: 1})
        self.await_calls(before + turn + 2)
        digests = digest, self.digest(rollout)
        stack.let_go(turn)
        return self._ended(answer, rollout, "agent", before, digests)

    def killed_in(self, tool: str, where: str, waiting: Path, what: str) -> Killed:
        """Roll out, and kill while a tool waits: `before` it does anything, or `after`."""
        stack = self.stack
        rollout, row = self.next_row()
        before = len(stack.model_calls())
        held, arrived = waiting / f"{tool}-{where}", waiting / f"{tool}-{where}-arrived"
        arrived.unlink(missing_ok=True)
        held.touch()
        answer = stack.run_later(row)
        _await(arrived.exists, f"{tool} did not come {where} its work")
        stack.kill(what)
        arrived.unlink()
        held.unlink()
        stack.restart(what)
        return self._ended(answer, rollout, what, before, ("", ""))

    def _ended(
        self, answer: Future[dict[str, Any]], rollout: str, what: str, before: int, digests: tuple[str, str]
    ) -> Killed:
        stack = self.stack
        result = answer.result(PATIENCE)
        in_doubt: tuple[InFlight, ...] = ()
        interrupted: tuple[InFlight, ...] = ()
        recovered = None
        if what in ("agent", "all"):
            in_doubt = stack.status("agent").recovery.in_doubt
        if what in ("res", "all"):
            recovery = stack.status("res").recovery
            interrupted = recovery.in_doubt
            mine = {session.id for session in self.sessions(rollout)}
            recovered = next((one for one in recovery.listed if one.id in mine), None)
        return Killed(
            answer=compared(result),
            digests=(*digests, self.digest(rollout)),
            calls=tuple(stack.model_calls()[before:]),
            in_doubt=in_doubt,
            interrupted=interrupted,
            recovered=recovered,
        )

    def next_row(self) -> tuple[str, dict[str, Any]]:
        rollout = f"{self.episode.name}-{next(_NUMBERS)}"
        return rollout, {**self.episode.row, "_ng_rollout_id": rollout}

    def sessions(self, rollout: str) -> list[control.SessionSummary]:
        every = self.stack.control("res", "digests", control.Sessions).sessions
        return [session for session in every if session.rollout == rollout]

    def digest(self, rollout: str) -> str:
        """Return the digest of the one session that the rollout has."""
        (session,) = self.sessions(rollout)
        return session.digest

    def await_calls(self, count: int) -> None:
        """Return once the model was asked so often, in all its lives."""
        _await(
            lambda: len(self.stack.model_calls()) >= count,
            f"{count} calls did not come: {self.stack.model_calls()}",
        )

    def _kill_and_await(self, what: str) -> None:
        servers = self.stack.servers
        names = ("res", "agent", MODEL) if what == "all" else (what,)
        before = dict(servers.restarted)
        processes = [identify(servers.pids[name]) for name in names]
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            assert process.wait(PATIENCE)
        _await(
            lambda: all(servers.restarted.get(name, 0) > before.get(name, 0) for name in names),
            "the supervisor did not see it",
        )
        servers.await_ready(names)


def compared(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two rollouts of one episode have in common."""
    return {key: value for key, value in answer.items() if key not in _NOT_COMPARED}


def outputs(answer: Mapping[str, Any]) -> str:
    """Return all that the environment said in a rollout."""
    said = [item.get("output") or "" for item in answer["response"]["output"]]
    return "\n".join(text for text in said if text)


def _await(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.01)
