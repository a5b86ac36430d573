"""Environments in processes of their own (SubprocVecEnv), without a change to the user's code.

An agent is set as an attribute of each environment and called through it, with SB3's own commands. Beside
the environment it keeps what SB3's worker remembers: the info of the last reset, which is sent with every step.

Not promised: vectored environments that answer through something else than SB3's `_worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unbroken.adapters.sb3.policy import worker_policy
from unbroken.capture.worker_agent import AGENT, Agent, Answer
from unbroken.capture.workers import Workers, WorkersByVector, WorkersCaptor
from unbroken.state.nodes import class_name
from unbroken.state.policy import Captor, Policy

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import SubprocVecEnv

_SUBPROC = "stable_baselines3.common.vec_env.subproc_vec_env:SubprocVecEnv"


class SubprocAgent(Agent):
    """Works in a process of a SubprocVecEnv."""

    loop = "_worker"
    remembered = ("reset_info",)

    def policy(self) -> Policy:
        """Return the rules for one environment of a training with SB3."""
        return worker_policy()


class SubprocWorkers(Workers):
    """The worker processes of one SubprocVecEnv, seen from the trainer."""

    def __init__(self, venv: SubprocVecEnv) -> None:
        super().__init__(venv)
        venv.set_attr(AGENT, SubprocAgent())

    def ask(self, command: str, *arguments: Any, of: Sequence[int] | None = None) -> list[Answer]:
        """Have every worker, or some of them, do the same at the same time."""
        return list(self.vector.env_method(AGENT, command, *arguments, indices=of))

    def ask_each(self, command: str, arguments: Sequence[Any]) -> list[Answer]:
        """Have every worker do the same with an argument of its own: one after the other."""
        return [self.ask_one(worker, command, argument) for worker, argument in enumerate(arguments)]


workers_of = WorkersByVector(SubprocWorkers)

_captor = WorkersCaptor(workers_of)


def workers_rule(obj: object) -> Captor | None:
    """Return the captor of a SubprocVecEnv, None for anything else."""
    return _captor if is_in_workers(obj) else None


def is_in_workers(venv: object) -> bool:
    """Return whether the environments of `venv` live in processes of SB3's."""
    return any(class_name(cls) == _SUBPROC for cls in type(venv).__mro__)
