"""All environments of an Algorithm: its own and those of evaluation, here and in remote runners.

An environment of no known family is put to the trial in another process; that takes seconds, once for
each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unbroken.adapters.rllib import agent
from unbroken.adapters.rllib.actors import RunnerActors
from unbroken.adapters.rllib.agent import Answer, Order
from unbroken.capture.environments import How, Verdict
from unbroken.errors import NotCapturable
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity, worse

EXACT = Promise(Fidelity.EXACT)


@dataclass(slots=True)
class Surroundings:
    """What was found out about the environments of an Algorithm."""

    promise: Promise = EXACT
    """Of those in this process."""
    promise_of_runners: Promise = EXACT
    """Of those in remote runners."""
    settings: frozenset[str] = frozenset()
    """Names of the arguments that their constructors take."""
    names: list[str] = field(default_factory=list[str])
    """How people call each."""
    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    """What was found out by trying, by the kind of environment."""
    says: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    """The worst verdict on each kind, by what is said of it."""


class _Local:
    """The runner in this process, asked as a remote one is."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def ids(self) -> list[int]:
        return [0]

    def call(self, order: Order, of: Sequence[int]) -> list[Answer]:
        return [order(self._runner)]


def look_around(algorithm: Any, kept: Mapping[str, Verdict]) -> Surroundings:
    """Put in place what capturing the environments needs, and find out what it promises.

    `kept` are verdicts of an earlier start of the run, used again: a trial that turns out differently
    would read the checkpoints in another way than they were written. Raises NotCapturable where
    something cannot be put in place.
    """
    found = Surroundings()
    for group in (algorithm.env_runner_group, algorithm.eval_env_runner_group):
        if group is None:
            continue
        if group.local_env_runner is not None:
            found.promise = worse(found.promise, _look(_Local(group.local_env_runner), found, kept))
        if group.num_remote_env_runners():
            there = _look(RunnerActors(group), found, kept)
            found.promise_of_runners = worse(found.promise_of_runners, there)
    return found


def attach_again(group: Any, index: int, verdicts: Mapping[str, Verdict]) -> None:
    """Put in place, in a runner that was started anew, what capturing its environments needs."""
    _ask(RunnerActors(group), agent.order(agent.attach, dict(verdicts)), [index])


def _look(runners: _Local | RunnerActors, found: Surroundings, kept: Mapping[str, Verdict]) -> Promise:
    answers = _ask(runners, agent.order(agent.introduce))
    for answer in answers:
        found.settings |= answer.settings
        found.names += [env.name for env in answer.environments]
        for env in answer.environments:
            if env.verdict is None and env.kind not in found.verdicts:
                find_out = _finder(runners, answer.index, env.kind)
                found.verdicts[env.kind] = kept[env.kind] if env.kind in kept else find_out()
    promise = EXACT
    for answer in _ask(runners, agent.order(agent.attach, found.verdicts)):
        for env in answer.environments:
            verdict = env.verdict or Verdict(How.NOTHING, Fidelity.NOT_CAPTURED)
            promise = worse(promise, Promise(verdict.fidelity, verdict.reason))
            found.says[env.name] = worse(found.says.get(env.name, verdict), verdict)
    return promise


def _finder(runners: _Local | RunnerActors, index: int, kind: str) -> Callable[[], Verdict]:
    def find_out() -> Verdict:
        answer = next(iter(runners.call(agent.order(agent.probe, kind), [index])), None)
        verdict = answer.environments[0].verdict if answer is not None and answer.environments else None
        if verdict is not None:
            return verdict
        why = "its runner died" if answer is None else answer.error
        # The training may go on without a trial; what nobody has looked at is no promise.
        return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, f"it could not be tried out: {why}")

    return find_out


def _ask(runners: _Local | RunnerActors, order: Order, of: Sequence[int] | None = None) -> list[Answer]:
    ids = runners.ids() if of is None else of
    answers = runners.call(order, ids)
    failed = next(_failures(answers), "" if len(answers) == len(ids) else "a runner does not answer")
    if failed:
        raise NotCapturable(
            f"The environments of the env runners cannot be prepared for saving: {failed}.",
            hint="Set num_env_runners=0 to see where the error comes from.",
        )
    return answers


def _failures(answers: Sequence[Answer]) -> Iterator[str]:
    return (f"runner {answer.index}: {answer.error}" for answer in answers if answer.error)
