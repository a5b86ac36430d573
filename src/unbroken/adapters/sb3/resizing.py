"""A training that goes on with another number of environments, which a person has asked for.

What does not depend on the number comes back: weights, optimizers, counters, schedules, statistics of
VecNormalize, callbacks, global generators, and the rows of a replay buffer (see `rows`). Every environment
begins a new episode, with the seed that belongs to its index, one that is new too. The rollout that was in
progress is left out.

Not promised: exactness, of course. Environments in other processes begin with new global generators of
their process, as they do in a new run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from unbroken.adapters.sb3 import rows
from unbroken.adapters.sb3.environments import innermost, seeds
from unbroken.adapters.sb3.position import END, START, STOPPED, Position
from unbroken.capture.sizes import nodes, references
from unbroken.engine.changes import within
from unbroken.errors import RestoreFailed
from unbroken.state import graft
from unbroken.state.graft import Difference, Graft
from unbroken.state.nodes import Dict, Link, Object, Ref, Scope, Value, escape
from unbroken.state.places import index, visit
from unbroken.state.policy import Phase
from unbroken.state.snapshot import Snapshot

COUNT = "model/n_envs"
"""Where a model says how many environments it has."""
ENV = "model/env"
_OF_STEPS = ("_last_obs", "_last_episode_starts", "_last_original_obs", "_last_lstm_states", "action_noise")
"""Attributes of a model with one part for each environment."""
_KNOWN = "stable_baselines3."


@dataclass(frozen=True, slots=True)
class Resizing:
    """One change of the number of environments, from `before` to `after`."""

    model: BaseAlgorithm
    before: int
    after: int
    seed: int | None
    """The seed of the run, where it was given one."""

    def left_out(self) -> list[str]:
        """Return the places that stay as the program built them."""
        model = self.model
        places = [f"model/{name}" for name in (*_OF_STEPS, "rollout_buffer") if hasattr(model, name)]
        if getattr(model, "replay_buffer", None) is not None:
            places.append(rows.PLACE)
        for place, venv in layers(model):
            if not isinstance(venv, VecEnvWrapper):
                places.append(place)
                continue
            names = [name for name, value in vars(venv).items() if _has_parts(value, self.after)]
            places += [f"{place}/{escape(name)}" for name in ("num_envs", *names)]
        return places

    def at_a_rollouts_begin(self, saved: Snapshot, position: Position) -> Snapshot:
        """Return `saved`, which stands at `position`, before the rollout that it may lie in."""
        position = replace(position)
        if position.kind in (END, STOPPED):
            return saved
        position.began_with()
        position.kind, position.steps = START, 0
        return _with_position(saved, position)

    def complete(self, plan: Graft, saved: Snapshot, now: Snapshot, position: Position) -> None:
        """Add to the plan what is not laid over the program place by place. `now` is what the program has."""

        def say(level: str, place: str, detail: str) -> None:
            plan.differences.append(Difference(level, place, detail))

        say("kept", "position", "stands before a rollout.")
        gone = frozenset(self.left_out())
        for place in {*references(saved, gone), *references(now, gone)}:
            say("kept", place, "is met among the environments.")
        self._action_space(plan, saved, gone)
        began = position.kind not in (START, END, STOPPED) and position.steps > 0
        if began and isinstance(self.model, OnPolicyAlgorithm):
            steps = f"{position.steps:,} step{'s' * (position.steps > 1)}"
            say(
                "lost",
                "model/rollout_buffer",
                f"the rollout in progress is left out ({steps} of it were done)",
            )
        if getattr(self.model, "replay_buffer", None) is not None:
            rows.carry_over(plan, saved, self.model)
        for place, venv in layers(self.model):
            if isinstance(venv, VecEnvWrapper) and not type(venv).__module__.startswith(_KNOWN):
                say("kept", place, "was reset after the restore.")
        if any(_writes_a_file(node) for _, _, node in nodes(saved)):
            say("lost", "files of Monitor", "begin anew; the rows that the checkpoint holds are left out")
        numbers = self._seeds()
        known = ", ".join(str(seed) for seed in numbers if seed is not None)
        say("fresh", "environments", "begin new episodes" + (f", with the seeds {known}" if known else ""))
        plan.write(_begin_episodes, self.model, numbers, phase=Phase.WRITE)

    def _action_space(self, plan: Graft, saved: Snapshot, gone: frozenset[str]) -> None:
        """Restore the generator of the action space, where it is one with that of an environment."""
        found = index(saved)
        node = _model_attributes(saved).get("action_space")
        place = found.place_of_number.get(node.to, "") if isinstance(node, Ref) else ""
        place = node.to if isinstance(node, Link) else place
        if not place or not within(place, gone):
            return
        whole = {at: (component, value) for component, at, value in nodes(saved) if at == place}
        component, value = whole[place]
        alone = copy(component)
        alone.roots = {"action_space": value}
        inner = graft.plan(
            Snapshot({component.name: alone}), {"action_space": self.model.action_space}, plan.policy
        )
        if inner.errors:
            plan.differences.append(
                Difference(
                    "lost", "model/action_space", "its generator begins anew (it was an environment's)"
                )
            )
            return
        plan.write(inner.apply, phase=Phase.GENERATORS)

    def _seeds(self) -> list[int | None]:
        """Return the seed of each environment, by its index."""
        model = self.model
        assert model.env is not None
        if self.seed is not None and self.seed != model.seed:
            return [self.seed + i for i in range(self.after)]
        return _seeds_as_built(innermost(model.env), model.seed)


def resizing_of(saved: Snapshot, model: BaseAlgorithm) -> Resizing | None:
    """Return how the number of environments differs from what was saved; None where it does not."""
    attributes = _model_attributes(saved)
    before, seed = attributes.get("n_envs"), attributes.get("seed")
    if type(before) is not int or model.env is None or before == model.env.num_envs:
        return None
    return Resizing(model, before, model.env.num_envs, seed if type(seed) is int else None)


def layers(model: BaseAlgorithm) -> list[tuple[str, VecEnv]]:
    """Return the wrappers of the training's environments and the vector below them, each with its place."""
    found: list[tuple[str, VecEnv]] = []
    place, venv = ENV, model.env
    while venv is not None:
        found.append((place, venv))
        place, venv = f"{place}/venv", venv.venv if isinstance(venv, VecEnvWrapper) else None
    return found


def _has_parts(value: object, n_envs: int) -> bool:
    """Whether an attribute of a wrapper has a part for each environment."""
    if isinstance(value, np.ndarray):
        return value.shape[:1] in ((n_envs,), (0,))
    if isinstance(value, (list, tuple)):
        return len(value) == n_envs
    if isinstance(value, dict):
        return any(_has_parts(part, n_envs) for part in value.values())
    return type(value).__name__ == "StackedObservations"


def _model_attributes(saved: Snapshot) -> dict[str, Value]:
    for component in saved.components.values():
        node = component.roots.get("model")
        if isinstance(node, Object):
            return node.a
    return {}


def _writes_a_file(node: Value) -> bool:
    """Whether an environment with a monitor's file stands here, or in the process that stands here."""
    if isinstance(node, Scope):
        inside = (value for root, child in node.roots.items() for _, value in visit(root, child))
        return any(map(_writes_a_file, inside))
    return isinstance(node, Object) and node.c.endswith("common.monitor:Monitor") and "file" in node.x


def _with_position(saved: Snapshot, position: Position) -> Snapshot:
    changed = copy(saved)
    changed.components = {}
    for key, component in saved.components.items():
        node = component.roots.get("position")
        kept = component
        if isinstance(node, Dict):
            kept = copy(component)
            kept.roots = {**component.roots, "position": Dict(id=node.id, v=dict(position.as_record()))}
        changed.components[key] = kept
    return changed


def _seeds_as_built(base: VecEnv, seed: int | None) -> list[int | None]:
    if hasattr(base, "envs"):
        return seeds(base)
    if seed is not None:
        return [seed + i for i in range(base.num_envs)]
    if base.has_attr("np_random_seed"):
        found = base.get_attr("np_random_seed")
        return [one if isinstance(one, int) and one >= 0 else None for one in found]
    return [None] * base.num_envs


def _begin_episodes(model: BaseAlgorithm, numbers: Sequence[int | None]) -> None:
    env = model.env
    assert env is not None
    # `VecEnv.seed` only gives numbers in a row, and these are what the next reset takes.
    innermost(env)._seeds = list(numbers)
    try:
        with _statistics_at_rest(env):
            observations: Any = env.reset()
    except RuntimeError as error:
        raise RestoreFailed(
            f"The environments cannot begin new episodes: {error}",
            hint="Let them be reset at any time (Monitor: allow_early_resets=True), and start again.",
        ) from error
    model._last_obs = observations
    model._last_episode_starts = np.ones((env.num_envs,), dtype=bool)
    normalized = model.get_vec_normalize_env()
    if normalized is not None:
        model._last_original_obs = normalized.get_original_obs()


@contextmanager
def _statistics_at_rest(env: VecEnv) -> Generator[None]:
    """Let a reset count nothing: the statistics are to be those that were saved."""
    found: list[VecNormalize] = []
    layer: Any = env
    while isinstance(layer, VecEnvWrapper):
        if isinstance(layer, VecNormalize) and layer.training:
            found.append(layer)
            layer.training = False
        layer = layer.venv
    try:
        yield
    finally:
        for one in found:
            one.training = True
