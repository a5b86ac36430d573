"""Gymnasium's `AsyncVectorEnv`: environments in processes of its own, exact, without a change to the program.

An agent is set as an attribute of each environment with `set_attr` and spoken to with `call`. Beside the
environment and the generators of its process it keeps what the worker's loop remembers: that the next step
has to reset (`AutoresetMode.NEXT_STEP`), and the last observation where no memory is shared. The shared
memory is an array of the vector here, and is restored in place.

Not promised: a vector with a `worker` function of the user's own, and one that is saved while an answer of
`step_async`, `reset_async` or `call_async` is still awaited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unbroken.capture.environments import How, Verdict
from unbroken.capture.worker_agent import AGENT, ERRAND, Agent, Answer
from unbroken.capture.workers import Workers, WorkersByVector, WorkersCaptor
from unbroken.errors import NotCapturable
from unbroken.state.nodes import class_name
from unbroken.state.policy import Captor, Policy
from unbroken.types import Fidelity

_ASYNC = "gymnasium.vector.async_vector_env:AsyncVectorEnv"
OWN_WORKER = Verdict(
    How.NOTHING,
    Fidelity.NOT_CAPTURED,
    "AsyncVectorEnv: its worker is a function of the program, and nobody knows what that keeps",
)


class AsyncAgent(Agent):
    """Works in a process of an AsyncVectorEnv."""

    loop = "_async_worker"
    remembered = ("autoreset", "observation")


class AsyncWorkers(Workers):
    """The worker processes of one AsyncVectorEnv, seen from the trainer."""

    def __init__(self, venv: Any) -> None:
        super().__init__(venv)
        self._be_idle()
        venv.set_attr(AGENT, AsyncAgent())

    def ask(self, command: str, *arguments: Any, of: Sequence[int] | None = None) -> list[Answer]:
        """Have every worker, or some of them, do the same at the same time."""
        self._be_idle()
        if of is None:
            return list(self.vector.call(AGENT, command, *arguments))
        answers = self._errands([(command, *arguments) if i in of else None for i in self._indices])
        return [answers[i] for i in of]

    def ask_each(self, command: str, arguments: Sequence[Any]) -> list[Answer]:
        """Have every worker do the same with an argument of its own."""
        return self._errands([(command, argument) for argument in arguments])

    @property
    def _indices(self) -> range:
        return range(self.vector.num_envs)

    def _errands(self, tasks: list[Any]) -> list[Answer]:
        self._be_idle()
        self.vector.set_attr(ERRAND, tasks)
        return list(self.vector.call(AGENT, "errand"))

    def _be_idle(self) -> None:
        if self.vector.closed:
            raise NotCapturable(
                "The environments of an AsyncVectorEnv cannot be reached: it is closed.",
                hint="Close it after the last save.",
            )
        pending = self.vector._state.value
        if pending != "default":
            raise NotCapturable(
                f"The environments of an AsyncVectorEnv cannot be saved: its {pending}_async is under way.",
                hint=f"Call {pending}_wait() before the top of the next iteration.",
            )


workers_of = WorkersByVector(AsyncWorkers)


def known_seeds(venv: Any) -> list[int | None]:
    """Return what each environment was last reset with, as of the newest capture; nothing is asked."""
    found = workers_of.known(venv)
    return [] if found is None else list(found.seeds)


_captor = WorkersCaptor(workers_of)


def workers_rule(obj: object) -> Captor | None:
    """Return the captor of an AsyncVectorEnv, None for anything else."""
    return _captor if is_in_workers(obj) and has_known_worker(obj) else None


def is_in_workers(venv: object) -> bool:
    """Return whether the environments of `venv` live in processes of Gymnasium's."""
    return any(class_name(cls) == _ASYNC for cls in type(venv).__mro__)


def is_idle(venv: Any) -> bool:
    """Return whether the workers of an AsyncVectorEnv can be spoken to: it is open and awaits no answer."""
    return not venv.closed and venv._state.value == "default"


def has_known_worker(venv: object) -> bool:
    """Return whether the processes of an AsyncVectorEnv run Gymnasium's own loop."""
    return vars(venv).get("worker") is None


POLICY = Policy(captors=(workers_rule,))
"""Apart from what is known of Gymnasium, by which the environments are walked in the workers, too."""
