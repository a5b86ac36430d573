"""All environments that a training can reach: its own, and those of its callbacks.

Not promised: an environment that only a closure or a global variable of the script leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import gymnasium
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper

from unbroken.adapters.sb3.callbacks import below
from unbroken.adapters.sb3.workers import Workers, workers_of
from unbroken.capture.attaching import attach_once, kind_of, name_of, seed_of, verdict_on
from unbroken.capture.environments import How, Verdict, known
from unbroken.capture.parallel import agents_of, verdict_on_agents
from unbroken.capture.source import setting_names
from unbroken.capture.workers import look_at
from unbroken.repo.process import Process, identify
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity


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
    for venv in vectors(model, root):
        looking.at(venv)
    return looking.result(() if model.env is None else looking.names_of(model.env))


class _Looking:
    def __init__(self, kept: Mapping[str, Verdict]) -> None:
        self._kept = kept
        self._tried: dict[str, Verdict] = {}
        self._found: dict[str, Verdict] = {}
        """The worst verdict on each kind, by what is said of it."""
        self._settings = {"num_envs", "n_envs"}
        self._names: dict[int, tuple[str, ...]] = {}

    def at(self, venv: VecEnv) -> None:
        base = innermost(venv)
        self._settings |= setting_names([venv])
        if isinstance(base, SubprocVecEnv):
            self._names[id(base)] = self._in_workers(workers_of(base))
        elif (members := getattr(base, "envs", None)) is not None:
            self._names[id(base)] = tuple(self._here(env) for env in members)
        elif (together := agents_of(base)) is not None:
            self._names[id(base)] = tuple(self._of_agents(env) for env in together)
        else:
            out_of_reach = Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, "its environments are out of reach")
            self._add(type(base).__qualname__, known(base) or out_of_reach)

    def names_of(self, venv: VecEnv) -> tuple[str, ...]:
        return self._names.get(id(innermost(venv)), ())

    def result(self, names: tuple[str, ...]) -> Surroundings:
        worst = max(self._found.values(), key=_rank, default=NOBODY_LOOKED)
        says = tuple(f"{name}: {verdict}" for name, verdict in self._found.items())
        promise = Promise(worst.fidelity, worst.reason)
        return Surroundings(promise, frozenset(self._settings), says, names, self._tried)

    def _here(self, env: Any) -> str:
        kind = kind_of(env)
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


def innermost(venv: VecEnv) -> VecEnv:
    """Return the vector below all wrappers."""
    while isinstance(venv, VecEnvWrapper):
        venv = venv.venv
    return venv


def vectors(model: BaseAlgorithm, root: BaseCallback) -> Iterator[VecEnv]:
    """Yield the training's vector of environments and those of the callbacks, each once."""
    seen: set[int] = set()
    found: list[Any] = [model.env]
    for callback in below(root):
        found += [value for value in vars(callback).values() if isinstance(value, VecEnv)]
    for venv in found:
        if isinstance(venv, VecEnv) and id(venv) not in seen:
            seen.add(id(venv))
            yield venv


def seeds(venv: VecEnv) -> list[int | None]:
    """Return the seed that each environment was last reset with; of those in workers, as of the newest capture."""
    base = innermost(venv)
    if isinstance(base, SubprocVecEnv):
        return list(workers_of(base).seeds)
    envs: list[gymnasium.Env[Any, Any]] = getattr(base, "envs", [])
    return [seed_of(env) for env in envs]


def processes(venv: VecEnv) -> list[Process]:
    """Return who the worker processes of a vector are, in their order."""
    base = innermost(venv)
    return [identify(pid) for pid in workers_of(base).pids] if isinstance(base, SubprocVecEnv) else []


def worker_status(venv: VecEnv) -> list[dict[str, Any]]:
    """Return what is told of each worker in a checkpoint."""
    return [{"pid": one.pid, "start": one.start, "state": "running"} for one in processes(venv)]
