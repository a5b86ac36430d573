"""Env runners and learners in processes of their own, as one object of the state: a scope for each.

A restore first plans in every process: all of them, or none, are written.

Not promised: an actor that dies meanwhile. It is named, and nothing is restored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from unbroken.adapters.rllib import agent
from unbroken.adapters.rllib.agent import Answer, Order
from unbroken.capture.elsewhere import restore_of, scope_of, tell
from unbroken.errors import NotCapturable, RestoreFailed
from unbroken.state.nodes import Dict, Scope, Value
from unbroken.state.policy import Captor, Phase

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_HINT = "Let RLlib start dead ones again: .fault_tolerance(restart_failed_env_runners=True)."
_SCOPES = "processes"


class ActorsMissing(NotCapturable):
    """Some actors are dead at this moment. RLlib may start others in their place."""


class Actors(ABC):
    """The actors of one group. `setting` is what says how many there are; `noun` what one is called."""

    setting = ""
    noun = ""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._expected: list[int] = self.ids()

    @abstractmethod
    def ids(self) -> list[int]:
        """Return the numbers under which RLlib keeps the actors that are alive."""

    @abstractmethod
    def call(self, order: Order, of: Sequence[int]) -> list[Answer]:
        """Have these actors do the same at the same time. One that is dead does not answer."""

    def ask(self, order: Order) -> dict[str, Answer]:
        """Return what every actor answers, by its index. Raises ActorsMissing where one does not."""
        ids = self.ids()
        answers = {str(answer.index): answer for answer in self.call(order, ids)}
        if len(answers) != len(self._expected):
            raise ActorsMissing(
                f"{len(answers)} of {len(self._expected)} {self.noun}s answer, so this moment cannot be saved.",
                hint=_HINT,
            )
        return answers


class RunnerActors(Actors):
    """The remote env runners of a group."""

    setting = "num_env_runners"
    noun = "env runner"

    def __init__(self, group: Any) -> None:
        super().__init__(group)
        self.told: list[dict[str, Any]] = []
        """What a checkpoint tells of each, as of the newest capture."""

    def ask(self, order: Order) -> dict[str, Answer]:
        """Return what every runner answers, by its index, and keep what is told of it."""
        answers = super().ask(order)
        self.told = [
            {
                "index": one.index,
                "pid": one.pid,
                "state": "running",
                "seeds": one.seeds,
                "episodes": one.episodes,
                "steps": one.steps,
                "replaces_a_dead_one": one.replaces,
            }
            for one in answers.values()
        ]
        return answers

    def ids(self) -> list[int]:
        found: list[int] = self._group.healthy_worker_ids()
        return found

    def call(self, order: Order, of: Sequence[int]) -> list[Answer]:
        from ray.exceptions import RayError

        try:
            answers: list[Answer] = self._group.foreach_env_runner(
                order, local_env_runner=False, remote_worker_ids=[*of]
            )
        except RayError as error:  # where RLlib is told not to bear with it
            raise ActorsMissing(
                "An env runner has died, so this moment cannot be saved.", hint=_HINT
            ) from error
        return answers


class LearnerActors(Actors):
    """The remote learners of a group."""

    setting = "num_learners"
    noun = "learner"

    def ids(self) -> list[int]:
        found: list[int] = self._group._worker_manager.healthy_actor_ids()
        return found

    def call(self, order: Order, of: Sequence[int]) -> list[Answer]:
        results = self._group.foreach_learner(order, remote_actor_ids=[*of])
        return [result.get() for result in results.result_or_errors if result.ok]


class ActorsCaptor:
    """Captor of `Actors`."""

    def attributes(self, obj: Actors) -> frozenset[str]:
        return frozenset()

    def capture(self, obj: Actors, walk: Walk) -> dict[str, Value]:
        scopes: dict[str, Value] = {}
        for index, answer in obj.ask(agent.order(agent.capture, walk.contents)).items():
            if answer.error or answer.state is None:
                raise NotCapturable(
                    f"The {obj.noun} {index} cannot be saved: {answer.error}.",
                    hint="It holds what the error names: keep it elsewhere, or make it plain data.",
                    place=f"{walk.place}/{index}",
                )
            scopes[index] = scope_of(answer.state, f"{obj.noun} {index}", walk)
        return {_SCOPES: Dict(v=scopes)}

    def plan(self, extra: dict[str, Value], obj: Actors, graft: Graft) -> None:
        saved = extra.get(_SCOPES)
        fields = saved.v if isinstance(saved, Dict) and saved.v is not None else {}
        scopes = {index: scope for index, scope in fields.items() if isinstance(scope, Scope)}
        here = {str(index): index for index in obj.ids()}
        if scopes.keys() != here.keys() and not _permitted(graft, obj, scopes, here):
            return
        both = [index for index in scopes if index in here]
        for index in both:
            inside = f"{graft.place}/<{_SCOPES}>/{index}"
            order = agent.order(agent.plan, restore_of(scopes[index], inside, graft))
            answer = next(iter(obj.call(order, [here[index]])), None)
            if answer is None or answer.error:
                why = "it has died" if answer is None else answer.error
                graft.error(f"the {obj.noun} {index} cannot take what was saved: {why}.")
            else:
                tell(answer.differences, inside, graft)
        graft.write(_apply, obj, [here[index] for index in both], phase=Phase.WORLD)


def _permitted(graft: Graft, actors: Actors, saved: Collection[str], here: Collection[str]) -> bool:
    """Whether another number of actors was allowed; each index that only one side has is told."""
    if not graft.keeps(actors.setting):
        detail = f"{len(saved)} remote {actors.noun}s were saved and the program has {len(here)}."
        graft.note_at(actors.setting, "error", detail)
        return False
    new = [("fresh", i, "is new, seeded by seed and index") for i in here if i not in saved]
    gone = [("lost", i, "is gone, and what it held is left out") for i in saved if i not in here]
    tell([*new, *gone], f"{graft.place}/<{_SCOPES}>", graft)
    return True


def _apply(actors: Actors, ids: Sequence[int]) -> None:
    answers = actors.call(agent.order(agent.apply), ids)
    failed = [answer for answer in answers if answer.error]
    if failed or len(answers) != len(ids):
        why = failed[0].error if failed else f"{len(ids) - len(answers)} of them have died"
        raise RestoreFailed(f"Not every {actors.noun} could be restored: {why}.")


_captor = ActorsCaptor()


def actors_rule(obj: object) -> Captor | None:
    """Return the captor of actors, None for anything else."""
    return _captor if isinstance(obj, Actors) else None
