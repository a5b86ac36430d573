"""All environments that a training can reach: its own, and whatever else its objects lead to.

An evaluation's environment, a list of them in a callback, those of a second model, one that a function keeps:
what the walk of the model and of the callbacks meets is captured, so it is prepared here like the training's own.

Not promised: an environment that only a global variable, an attribute of a class or a variable around a method
leads to. No checkpoint has it; the first save names it (`capture/uncovered`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import gymnasium
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper

from unbroken.adapters.sb3.callbacks import below
from unbroken.adapters.sb3.policy import training_policy
from unbroken.adapters.sb3.workers import workers_of
from unbroken.capture import async_vectors, registry
from unbroken.capture.attaching import attach_once, kind_of, name_of, seed_of, verdict_on
from unbroken.capture.environments import How, Verdict, chain, known
from unbroken.capture.parallel import agents_of, verdict_on_agents
from unbroken.capture.source import setting_names
from unbroken.capture.workers import Workers, look_at
from unbroken.repo.process import Process, identify
from unbroken.state.nodes import class_name
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Promise
from unbroken.state.walk import walk
from unbroken.types import Fidelity

Environment = VecEnv | gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]
_KINDS = (VecEnv, gymnasium.Env, gymnasium.vector.VectorEnv)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found out about the environments of one training."""

    promise: Promise
    settings: frozenset[str]
    """Names of the arguments that their constructors take."""
    says: tuple[str, ...]
    """One line for each kind of environment."""
    names: tuple[str, ...] = ()
    """How people call each environment of the training, in their order."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])
    """What was found out by trying, by the kind of environment."""
    environments: tuple[Environment, ...] = ()
    """All of them, each vector once."""


def look_around(
    model: BaseAlgorithm, root: BaseCallback, kept: Mapping[str, Verdict] = MappingProxyType({})
) -> Surroundings:
    """Put in place what capturing the environments needs, and find out what it promises.

    An environment of no known family is tried out in another process; that takes seconds, once for
    each kind. `kept` are verdicts of an earlier start of the run: they are used again, since a trial
    that turns out differently (it took too long) would read the checkpoints in another way than they
    were written. Raises NotCapturable where something cannot be put in place.
    """
    looking = _Looking(kept)
    found = environments(model, root)
    for environment in found:
        looking.at(environment)
    names = () if model.env is None else looking.names_of(model.env)
    return replace(looking.result(names), environments=tuple(found))


class _Looking:
    def __init__(self, kept: Mapping[str, Verdict]) -> None:
        self._kept = kept
        self._tried: dict[str, Verdict] = {}
        self._found: dict[str, Verdict] = {}
        """The worst verdict on each kind, by what is said of it."""
        self._settings = {"num_envs", "n_envs"}
        self._names: dict[int, tuple[str, ...]] = {}

    def at(self, environment: Environment) -> None:
        self._settings |= setting_names([environment])
        if isinstance(environment, gymnasium.Env):
            self._here(environment)
            return
        base = _base(environment)
        workers = _workers_of(base)
        if workers is not None:
            self._names[id(base)] = self._in_workers(workers)
        elif (members := getattr(base, "envs", None)) is not None:
            self._names[id(base)] = tuple(self._here(env) for env in members)
        elif (together := agents_of(base)) is not None:
            self._names[id(base)] = tuple(self._of_agents(env) for env in together)
        else:
            self._add(type(base).__qualname__, known(base) or _OUT_OF_REACH)

    def names_of(self, venv: VecEnv) -> tuple[str, ...]:
        return self._names.get(id(innermost(venv)), ())

    def result(self, names: tuple[str, ...]) -> Surroundings:
        worst = max(self._found.values(), key=_rank, default=NOBODY_LOOKED)
        says = tuple(f"{name}: {verdict}" for name, verdict in self._found.items())
        promise = Promise(worst.fidelity, worst.reason)
        return Surroundings(promise, frozenset(self._settings), says, names, self._tried)

    def _here(self, env: Any) -> str:
        kind = kind_of(env)
        if registry.registered(list(chain(env))[-1]) is not None:
            self._kept = {
                name: kept for name, kept in self._kept.items() if name != kind
            }  # a new one is tried
        verdict = self._verdict(kind, known(env), lambda: verdict_on(env))
        self._add(type(env.unwrapped).__qualname__, attach_once(env, verdict), verdict)
        return name_of(env)

    def _of_agents(self, env: Any) -> str:
        verdict = self._verdict(kind_of(env), None, lambda: verdict_on_agents(env))
        name = type(env.unwrapped).__qualname__
        self._add(name, verdict)
        self._settings |= setting_names([env])
        return name

    def _in_workers(self, workers: Workers) -> tuple[str, ...]:
        found = look_at(workers, self._verdict)
        for seen in found:
            on_it = [] if seen.attached is None else [seen.attached]
            self._add(f"{seen.kind.rpartition(':')[2]} in workers", *on_it, seen.verdict)
            self._settings |= seen.settings
        return tuple(seen.name for seen in found)

    def _verdict(self, kind: str, sure: Verdict | None, find_out: Callable[[], Verdict]) -> Verdict:
        if sure is not None:
            return sure
        if kind not in self._tried:
            self._tried[kind] = self._kept[kind] if kind in self._kept else find_out()
        return self._tried[kind]

    def _add(self, said: str, *verdicts: Verdict) -> None:
        self._found[said] = max((*verdicts, self._found.get(said, verdicts[0])), key=_rank)


NOBODY_LOOKED = Verdict(How.NOTHING, Fidelity.APPROXIMATE, "no environment was found to look at")


def _rank(verdict: Verdict) -> int:
    return list(Fidelity).index(verdict.fidelity)


_OUT_OF_REACH = Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, "its environments are out of reach")


def innermost(venv: VecEnv) -> VecEnv:
    """Return the vector below all wrappers."""
    while isinstance(venv, VecEnvWrapper):
        venv = venv.venv
    return venv


def _base(environment: Environment) -> Any:
    """Return the vector, or the environment, below all wrappers."""
    return innermost(environment) if isinstance(environment, VecEnv) else list(chain(environment))[-1]


def environments(model: BaseAlgorithm, root: BaseCallback) -> list[Environment]:
    """Return every environment that a walk of the training meets, outermost first, the training's own before all.

    The walk enters none of them. Of two chains of wrappers around the same environment the longer one comes first.
    """
    walked = walk(
        {"env": model.env, "model": model, "callbacks": list(below(root))},
        _up_to_environments(),
        contents=False,
    )
    met = [value for value in walked.met() if isinstance(value, _KINDS)]
    vectors: dict[int, Environment] = {}
    for one in met:
        if not isinstance(one, gymnasium.Env):
            vectors.setdefault(id(_base(one)), one)
    alone = sorted((one for one in met if isinstance(one, gymnasium.Env)), key=_depth, reverse=True)
    return [*vectors.values(), *alone]


def _depth(env: gymnasium.Env[Any, Any]) -> int:
    return len(list(chain(env)))


@cache
def _up_to_environments() -> Policy:
    return training_policy().merged(Policy(external_classes=frozenset(map(class_name, _KINDS))))


def _workers_of(base: Any) -> Workers | None:
    """Return the workers of a vector whose environments live in other processes, if they can be spoken to."""
    if isinstance(base, SubprocVecEnv):
        return workers_of(base)
    if async_vectors.is_in_workers(base) and async_vectors.has_known_worker(base):
        return async_vectors.workers_of(base)
    return None


def seeds(venv: VecEnv) -> list[int | None]:
    """Return the seed that each environment was last reset with; of those in workers, as of the newest capture."""
    base = innermost(venv)
    if isinstance(base, SubprocVecEnv):
        return list(workers_of(base).seeds)
    envs: list[gymnasium.Env[Any, Any]] = getattr(base, "envs", [])
    return [seed_of(env) for env in envs]


def processes(environment: Environment) -> list[Process]:
    """Return who the worker processes of a vector are, in their order."""
    workers = _workers_of(_base(environment))
    return [] if workers is None else [identify(pid) for pid in workers.pids]


def worker_status(venv: VecEnv) -> list[dict[str, Any]]:
    """Return what is told of each worker in a checkpoint: who it is, and of its environment the seed of the last reset,
    `episodes` that have ended and `steps` of the open one, as of the newest capture and as far as its wrappers count.
    """
    workers = _workers_of(_base(venv))
    if workers is None:
        return []
    told: list[dict[str, Any]] = [
        {"index": index, "pid": one.pid, "start": one.start, "state": "running"}
        for index, one in enumerate(processes(venv))
    ]
    for one, seed, progress in zip(
        told, workers.seeds, workers.progress, strict=False
    ):  # none before a capture
        one |= {"seed": seed, **progress}
    return told
