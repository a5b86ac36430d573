"""Environments in processes of their own (SubprocVecEnv), without a change to the user's code.

An agent is set as an attribute of each environment and called through it, with SB3's own commands. Beside
the environment it keeps what SB3's worker remembers: the info of the last reset, which is sent with every step.

Not promised: vectored environments that answer through something else than SB3's `_worker`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unbroken.adapters.sb3.policy import worker_policy
from unbroken.capture.worker_agent import AGENT, Answer
from unbroken.capture.worker_agent import Agent as WorkerAgent
from unbroken.capture.workers import WorkersCaptor
from unbroken.errors import InternalError
from unbroken.state.nodes import class_name
from unbroken.state.policy import Captor, Policy

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import SubprocVecEnv

_SUBPROC = "stable_baselines3.common.vec_env.subproc_vec_env:SubprocVecEnv"


class Agent(WorkerAgent):
    """Works in a process of a SubprocVecEnv."""

    loop = "_worker"
    remembered = ("reset_info",)

    def policy(self) -> Policy:
        """Return the rules for one environment of a training with SB3."""
        return worker_policy()


class Workers:
    """The worker processes of one SubprocVecEnv, seen from the trainer."""

    def __init__(self, venv: SubprocVecEnv) -> None:
        self._alive = weakref.ref(venv)  # whoever built it decides how long it lives
        self.seeds: list[int | None] = []
        """What each environment was last reset with, as of the newest capture."""
        venv.set_attr(AGENT, Agent())

    def ask(self, command: str, *arguments: Any, of: Sequence[int] | None = None) -> list[Answer]:
        """Have every worker, or some of them, do the same at the same time."""
        return list(self.vector.env_method(AGENT, command, *arguments, indices=of))

    def ask_one(self, worker: int, command: str, *arguments: Any) -> Answer:
        """Have one worker do something."""
        answer: Answer = self.vector.env_method(AGENT, command, *arguments, indices=[worker])[0]
        return answer

    def ask_each(self, command: str, arguments: Sequence[Any]) -> list[Answer]:
        """Have every worker do the same with an argument of its own."""
        return [self.ask_one(worker, command, argument) for worker, argument in enumerate(arguments)]

    @property
    def vector(self) -> SubprocVecEnv:
        """The vector whose workers they are."""
        vector = self._alive()
        if vector is None:
            raise InternalError("The workers of a vector are asked, and it is gone.")
        return vector

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self.vector.processes if process.pid is not None]


_workers: weakref.WeakKeyDictionary[Any, Workers] = weakref.WeakKeyDictionary()


def workers_of(venv: SubprocVecEnv) -> Workers:
    """Return the workers of `venv`; the agent is placed in them at the first call."""
    found = _workers.get(venv)
    if found is None:
        found = _workers[venv] = Workers(venv)
    return found


_captor = WorkersCaptor(workers_of)


def workers_rule(obj: object) -> Captor | None:
    """Return the captor of a SubprocVecEnv, None for anything else."""
    return _captor if is_in_workers(obj) else None


def is_in_workers(venv: object) -> bool:
    """Return whether the environments of `venv` live in processes of SB3's."""
    return any(class_name(cls) == _SUBPROC for cls in type(venv).__mro__)
