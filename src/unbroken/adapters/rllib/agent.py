"""What runs in the process of a remote env runner or learner, called by the Algorithm's own means.

An error is an answer, never an exception: RLlib would take the actor for dead and start another.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from unbroken.adapters.rllib.callbacks import Callbacks
from unbroken.adapters.rllib.policy import actor_policy
from unbroken.capture.attaching import attach_once, kind_of, name_of, verdict_on
from unbroken.capture.elsewhere import Captured, Restore, captured, planned
from unbroken.capture.environments import How, Verdict, known
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import setting_names
from unbroken.errors import InternalError
from unbroken.state.graft import Graft
from unbroken.state.nodes import class_name
from unbroken.types import Fidelity


@dataclass(slots=True)
class Environment:
    """One environment of a runner, as people and the probe know it."""

    kind: str
    """What one verdict holds for."""
    name: str
    verdict: Verdict | None


@dataclass(slots=True)
class Answer:
    """What a process says. `error` is empty if all went well."""

    index: int
    """Of the runner or learner, as RLlib counts them."""
    pid: int
    error: str = ""
    state: Captured | None = None
    differences: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    environments: list[Environment] = field(default_factory=list[Environment])
    settings: frozenset[str] = frozenset()
    """Names of the arguments that the environments' constructors take."""
    seeds: list[int | None] = field(default_factory=list["int | None"])
    results: list[Any] = field(default_factory=list[Any])
    """Of updates that a learner has done and not told of."""
    episodes: int | None = None
    """How many have ended in this runner, and in those whose state it goes on with."""
    steps: list[int] = field(default_factory=list[int])
    """How many each open episode has."""
    replaces: bool = False
    """Whether it took the place of a runner that had died."""


Order = Callable[[Any], Answer]
"""To be sent to an actor and called with the runner or learner that lives in it."""

_plans: weakref.WeakKeyDictionary[Any, Graft] = weakref.WeakKeyDictionary()
"""What waits to be applied."""


def order(command: Callable[..., None], *arguments: Any) -> Order:
    """Return what makes an actor do `command`, one of the functions below."""
    return partial(_obey, command, arguments)


def _obey(command: Callable[..., None], arguments: Sequence[Any], actor: Any) -> Answer:
    index = getattr(actor, "worker_index", None)
    answer = Answer(int(index if index is not None else getattr(actor, "_learner_index", 0)), os.getpid())
    try:
        command(actor, answer, *arguments)
    except Exception as error:  # noqa: BLE001 - the actor would be taken for dead
        answer.error = str(error) or type(error).__name__
    return answer


def introduce(runner: Any, answer: Answer) -> None:
    """Say what the environments are."""
    for env in environments(runner):
        answer.environments.append(
            Environment(kind_of(env), name_of(env), known(env) or _of_many_agents(env))
        )
        answer.settings |= setting_names([env])


def _of_many_agents(env: Any) -> Verdict | None:
    """Return the verdict on an environment of many agents, which the trial cannot step."""
    if all(class_name(cls) != _MANY_AGENTS for cls in type(env.unwrapped).__mro__):
        return None
    reason = (
        f"{type(env.unwrapped).__qualname__} has many agents and is not tried out: its attributes come back, what"
        " stands elsewhere does not"
    )
    return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, reason)


_MANY_AGENTS = "ray.rllib.env.multi_agent_env:MultiAgentEnv"


def probe(runner: Any, answer: Answer, kind: str) -> None:
    """Find out what a restore of an environment of this kind gives."""
    env = next(env for env in environments(runner) if kind_of(env) == kind)
    answer.environments.append(Environment(kind, name_of(env), verdict_on(env)))


def attach(runner: Any, answer: Answer, verdicts: dict[str, Verdict]) -> None:
    """Put in place what the capture of the environments needs."""
    for env in environments(runner):
        kind = kind_of(env)
        answer.environments.append(
            Environment(kind, name_of(env), attach_once(env, verdicts.get(kind) or _of_many_agents(env)))
        )


def capture(actor: Any, answer: Answer, contents: bool) -> None:  # noqa: FBT001 - sent by position
    """Walk the actor and the generators of this process."""
    answer.state = captured(_roots(actor), actor_policy(), contents=contents)
    answer.seeds = seeds(actor)
    for callback in getattr(actor, "_callbacks", ()):
        if hasattr(callback, "lives"):
            answer.episodes, answer.replaces = callback.ended, callback.lives > 0
    # Of many agents an episode counts steps of the environment apart from those of each agent.
    opened = [one for one in getattr(actor, "_ongoing_episodes", None) or () if one is not None]
    answer.steps = [int(one.env_t if hasattr(one, "env_t") else one.t) for one in opened]


def plan(actor: Any, answer: Answer, restore: Restore) -> None:
    """Lay a saved state over the actor; nothing is touched."""
    found = _plans[actor] = planned(_roots(actor), actor_policy(), restore)
    answer.differences = [(d.level, d.place, d.detail) for d in found.differences]


def apply(actor: Any, _: Answer) -> None:
    """Execute the plan."""
    found = _plans.pop(actor, None)
    if found is None:
        raise InternalError("A process is told to restore and has no plan.")
    found.apply()


def begin_anew(runner: Any, _: Answer, count: int) -> None:
    """Seed a runner that took the place of one that died, by seed, worker index and how many died before.

    RLlib gives it the seed of its predecessor, whose first episodes and actions it would repeat.
    """
    from ray.rllib.utils.debug import update_global_seed_if_necessary

    if runner._seed is not None:
        runner._seed += _NEXT_LIFE * count
        update_global_seed_if_necessary(runner.config.framework_str, runner._seed)
    for callback in runner._callbacks:
        if hasattr(callback, "lives"):
            callback.lives = count


_NEXT_LIFE = 10_007
"""A prime: beyond the number of workers, so that no two of them ever share a seed."""


def environments(runner: Any) -> Iterator[Any]:
    """Yield the environments of a runner that live in its process."""
    env = getattr(runner, "env", None)
    if env is None:
        return
    members = vars(env.unwrapped).get("envs")
    yield from members if members is not None else (env,)


def seeds(actor: Any) -> list[int | None]:
    """Return the seed that each environment was last reset with."""
    found = (getattr(getattr(env, "unwrapped", env), "_np_random_seed", None) for env in environments(actor))
    return [seed if isinstance(seed, int) and seed >= 0 else None for seed in found]


def constants() -> dict[str, object]:
    """Return what RLlib keeps in a module and episodes refer to: it must stay one object."""
    from ray.rllib.env.single_agent_episode import _REWARDS_BOX_SPACE

    return {"rewards_space": _REWARDS_BOX_SPACE}


def runner_roots(runner: Any, prefix: str = "") -> dict[str, object]:
    """Return what an env runner consists of. The environment first: episodes refer to its spaces."""
    found = {} if runner.env is None else {f"{prefix}env": runner.env}
    return {
        **found,
        f"{prefix}env_runner": runner,
        f"{prefix}env_runner_callbacks": Callbacks(runner._callbacks),
    }


def _roots(actor: Any) -> dict[str, object]:
    own = runner_roots(actor) if hasattr(actor, "worker_index") else {"learner": actor}
    return {**constants(), **own, "generators": GlobalGenerators()}
