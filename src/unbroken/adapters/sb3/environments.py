"""All environments that a training can reach: its own, and those of its callbacks.

Not promised: an environment that only a closure or a global variable of the script leads to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper

from unbroken.adapters.sb3.attaching import attach_once, verdict_on
from unbroken.adapters.sb3.callbacks import below
from unbroken.adapters.sb3.reaping import identify
from unbroken.adapters.sb3.workers import workers_of
from unbroken.capture.environments import Verdict, chain
from unbroken.capture.source import ENVIRONMENTS, setting_names
from unbroken.state.nodes import class_name
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


def look_around(model: BaseAlgorithm, root: BaseCallback) -> Surroundings:
    """Put in place what capturing the environments needs, and find out what it promises.

    An environment of no known family is built twice in another process and tried out; that takes
    seconds, once for each kind.
    """
    verdicts: dict[str, Verdict] = {}
    settings = {"num_envs", "n_envs"}
    for venv in vectors(model, root):
        base = innermost(venv)
        settings |= setting_names([venv])
        if isinstance(base, SubprocVecEnv):
            settings |= _attach_workers(base, verdicts)
            continue
        for env in getattr(base, "envs", ()):
            kind = "/".join(class_name(type(layer)) for layer in chain(env))
            if kind not in verdicts:
                verdicts[kind] = verdict_on(env)
            verdicts[kind] = _worse(verdicts[kind], attach_once(env, verdicts[kind]))
    worst = max(verdicts.values(), key=_rank, default=None)
    promise = Promise(Fidelity.EXACT) if worst is None else Promise(worst.fidelity, worst.reason)
    says = tuple(f"{kind.rpartition('/')[2].rpartition(':')[2]}: {v}" for kind, v in verdicts.items())
    return Surroundings(promise, frozenset(settings), says)


def _attach_workers(venv: SubprocVecEnv, verdicts: dict[str, Verdict]) -> set[str]:
    workers = workers_of(venv)
    first = workers.ask_one(0, "probe")
    settings: set[str] = set()
    for answer in workers.ask("attach", first.verdict):
        settings |= answer.settings
        if answer.verdict is not None:
            name = f"{answer.kind} in workers"
            verdicts[name] = _worse(verdicts.get(name, answer.verdict), answer.verdict)
    return settings


def _rank(verdict: Verdict) -> int:
    return list(Fidelity).index(verdict.fidelity)


def _worse(one: Verdict, other: Verdict) -> Verdict:
    return max(one, other, key=_rank)


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
    """Return the seed that each environment in this process was last reset with."""
    envs: list[gymnasium.Env[Any, Any]] = getattr(innermost(venv), "envs", [])
    found = (vars(env.unwrapped).get("_np_random_seed") for env in envs)
    return [seed if isinstance(seed, int) and seed >= 0 else None for seed in found]


def worker_status(venv: VecEnv) -> list[dict[str, Any]]:
    """Return who the worker processes of a vector are, in their order."""
    base = innermost(venv)
    if not isinstance(base, SubprocVecEnv):
        return []
    return [{"pid": pid, "start": identify(pid).start, "state": "running"} for pid in workers_of(base).pids]


__all__ = ["ENVIRONMENTS", "Surroundings", "innermost", "look_around", "seeds", "vectors", "worker_status"]
