"""The workers of one vector, seen from the trainer: what they are, what is saved of them, how they come back.

An answer becomes a `Scope` in the document. A restore first plans in every worker: all of them, or none,
are written. How a question travels says the vector's own `Workers`.

Not promised: a vector of which some workers have died; its own command tells that, with an error of its own.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from unbroken.capture import elsewhere
from unbroken.capture.elsewhere import restore_of, scope_of
from unbroken.capture.environments import How, Verdict
from unbroken.capture.replay_cost import Cost, side_by_side, tell
from unbroken.capture.worker_agent import Answer
from unbroken.errors import InternalError, NotCapturable, RestoreFailed
from unbroken.state.nodes import List, Scope, Value
from unbroken.state.policy import Phase
from unbroken.types import Fidelity

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

WORKERS = "workers"


class Workers(ABC):
    """The worker processes of one vector."""

    def __init__(self, venv: Any) -> None:
        self._alive = weakref.ref(venv)  # whoever built it decides how long it lives
        self.seeds: list[int | None] = []
        """What each environment was last reset with, as of the newest capture."""
        self.progress: list[dict[str, int]] = []
        """How far the episodes of each are, as of then."""

    @abstractmethod
    def ask(self, command: str, *arguments: Any, of: Sequence[int] | None = None) -> list[Answer]:
        """Have every worker, or some of them, do the same at the same time."""

    @abstractmethod
    def ask_each(self, command: str, arguments: Sequence[Any]) -> list[Answer]:
        """Have every worker do the same with an argument of its own."""

    def ask_one(self, worker: int, command: str, *arguments: Any) -> Answer:
        """Have one worker do something."""
        return self.ask(command, *arguments, of=[worker])[0]

    @property
    def vector(self) -> Any:
        """The vector whose workers they are."""
        vector = self._alive()
        if vector is None:
            raise InternalError("The workers of a vector are asked, and it is gone.")
        return vector

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self.vector.processes if process.pid is not None]


W = TypeVar("W", bound=Workers)


class WorkersByVector(Generic[W]):
    """The workers of each vector: its agent is placed in them when they are first asked for."""

    def __init__(self, make: Callable[[Any], W]) -> None:
        self._make = make
        self._known: weakref.WeakKeyDictionary[Any, W] = weakref.WeakKeyDictionary()

    def __call__(self, venv: Any) -> W:
        """Return the workers of `venv`."""
        found = self._known.get(venv)
        if found is None:
            found = self._known[venv] = self._make(venv)
        return found

    def known(self, venv: Any) -> W | None:
        """Return the workers of `venv` if they were asked for before."""
        return self._known.get(venv)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found out about the environment of one worker."""

    kind: str
    name: str
    settings: frozenset[str]
    verdict: Verdict
    """On its kind."""
    attached: Verdict | None
    """On what stands in the worker, if it says so."""


def look_at(
    workers: Workers, verdict_on: Callable[[str, Verdict | None, Callable[[], Verdict]], Verdict]
) -> list[Seen]:
    """Put in place what capturing the environments needs; return what was found out, in their order.

    `verdict_on` is asked once for each kind, with what is known of it by name and a way to find out more.
    Raises NotCapturable where something cannot be put in place.
    """
    introduced = [_answered(i, answer) for i, answer in enumerate(workers.ask("introduce"))]
    found: dict[int, Seen] = {}
    for kind in dict.fromkeys(answer.kind for answer in introduced):
        those = [i for i, answer in enumerate(introduced) if answer.kind == kind]
        first = introduced[those[0]]
        verdict = verdict_on(kind, first.verdict, lambda i=those[0]: _probed(workers, i))  # type: ignore[misc]
        for i, answer in zip(those, workers.ask("attach", verdict, of=those), strict=True):
            attached = _answered(i, answer).verdict
            found[i] = Seen(kind, introduced[i].name, introduced[i].settings, verdict, attached)
    if any((seen.attached or seen.verdict).how in (How.REPLAY, How.WHOLE_REPLAY) for seen in found.values()):
        tell(workers.vector, partial(_cost, workers))
    return [found[i] for i in range(len(introduced))]


def _cost(workers: Workers) -> Cost:
    """Return what a restore would take: the workers replay at the same time."""
    return side_by_side([answer.cost for answer in workers.ask("cost")], os.cpu_count() or 1)


def _answered(worker: int, answer: Answer) -> Answer:
    if answer.error:
        raise NotCapturable(
            f"Environment worker {worker} cannot be prepared for saving: {answer.error}.",
            hint="Build the environments in the trainer's own process to see where the error comes from.",
        )
    return answer


def _probed(workers: Workers, worker: int) -> Verdict:
    answer = workers.ask_one(worker, "probe")
    if answer.verdict is not None and not answer.error:
        return answer.verdict
    # The training may go on without a trial; what nobody has looked at is no promise.
    return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, f"it could not be tried out: {answer.error}")


class WorkersCaptor:
    """Captor of a vector whose environments live in workers: one scope a worker."""

    def __init__(self, workers_of: Callable[[Any], Workers]) -> None:
        self._workers_of = workers_of

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        workers = self._workers_of(obj)
        scopes: list[Value] = []
        answers = workers.ask("capture", walk.contents)
        for i, answer in enumerate(answers):
            if answer.error or answer.state is None:
                raise NotCapturable(
                    f"Environment worker {i} cannot be saved: {answer.error}.",
                    hint="Its environment holds what the error names: keep it elsewhere, or make it plain data.",
                    place=f"{walk.place}/{i}",
                )
            scopes.append(scope_of(answer.state, f"worker {i}", walk))
        workers.seeds = [answer.seed for answer in answers]
        workers.progress = [answer.progress for answer in answers]
        return {WORKERS: List(v=scopes)}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        saved = extra.get(WORKERS)
        scopes = [scope for scope in saved.v if isinstance(scope, Scope)] if isinstance(saved, List) else []
        if len(scopes) != obj.num_envs:
            graft.error(f"{len(scopes)} workers were saved and the program has {obj.num_envs}.")
            return
        workers = self._workers_of(obj)
        places = [f"{graft.place}/<{WORKERS}>/{i}" for i in range(len(scopes))]
        restores = [restore_of(scope, inside, graft) for scope, inside in zip(scopes, places, strict=True)]
        for i, answer in enumerate(workers.ask_each("plan", restores)):
            if answer.error:
                graft.error(f"environment worker {i} cannot take what was saved: {answer.error}.")
            elsewhere.tell(answer.differences, places[i], graft)
        graft.write(_apply, workers, phase=Phase.WORLD)


def _apply(workers: Workers) -> None:
    for i, answer in enumerate(workers.ask("apply")):
        if answer.error:
            raise RestoreFailed(f"Environment worker {i} could not be restored: {answer.error}.")
