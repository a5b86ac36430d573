"""One SB3 training as the engine sees it: what is captured, and how a saved state is laid over it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from unbroken.adapters.sb3 import changes, wording
from unbroken.adapters.sb3.callbacks import with_state
from unbroken.adapters.sb3.environments import Surroundings, seeds, worker_status
from unbroken.adapters.sb3.outputs import record_outputs
from unbroken.adapters.sb3.policy import training_policy
from unbroken.adapters.sb3.position import Position
from unbroken.adapters.sb3.reentry import plain_frequency
from unbroken.adapters.sb3.resizing import COUNT, layers, resizing_of
from unbroken.capture import verdicts
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import ENVIRONMENTS, GraftSource
from unbroken.engine.changes import Change, Verdict
from unbroken.engine.wording import Words
from unbroken.state import graft
from unbroken.state.graft import Difference, Graft
from unbroken.state.nodes import Dict, Object, Value
from unbroken.state.pickles import Trust
from unbroken.state.snapshot import Promise, Snapshot, component_of
from unbroken.types import Fidelity, worse

CALLBACKS = "callbacks"
_IN_THE_MIDDLE = "was replaced in the middle of a rollout, which goes on with the former one until it ends."


class TrainingSource(GraftSource):
    """Source over a model, the callbacks of its training, and the global generators.

    `position` is a record (see `Position`); it is captured, and after a restore holds what was saved.
    """

    def __init__(
        self,
        model: BaseAlgorithm,
        root: BaseCallback,
        ours: BaseCallback,
        surroundings: Surroundings,
    ) -> None:
        self.position: dict[str, str | int] = Position().as_record()
        self.live: Position | None = None
        """Where the loop stands, once it moves; what is captured from then on."""
        self.outputs = record_outputs(model)
        """Where the first start of the run shows itself."""
        self._model = model
        self._ours = ours
        self._surroundings = surroundings
        self._callbacks = with_state(root, ours)
        roots: dict[str, object] = {
            "model": model,
            CALLBACKS: self._callbacks,
            "position": self.position,
            "outputs": self.outputs,
            "environments": ", ".join(dict.fromkeys(surroundings.names)),
            "generators": GlobalGenerators(),
        }
        super().__init__(
            roots,
            training_policy(),
            facts=self._known,
            promises={ENVIRONMENTS: surroundings.promise},
        )

    def capture(self) -> Snapshot:
        """Return the state, as `GraftSource` does."""
        if self.live is not None:
            self.live.calls = self._ours.n_calls
            self.position.clear()  # of what the rollout before began with
            self.position.update(self.live.as_record())
        with plain_frequency(self._model):
            snapshot = super().capture()
        for name in str(self.position.get("lost", "")).split():
            place = f"model/{name}"
            part = component_of(place, snapshot)
            promise = Promise(Fidelity.APPROXIMATE, f"{place}: {_IN_THE_MIDDLE}")
            snapshot.promises[part] = worse(snapshot.promises[part], promise)
        return snapshot

    def causes(self, found: Sequence[Change]) -> list[Change]:
        """Leave out what only follows from another number of environments."""
        return changes.causes(found, layers(self._model)[-1][0])

    def judge(self, change: Change) -> Verdict:
        """Say what becomes of a change. See `changes`."""
        return changes.judge(change, self._surroundings.settings)

    def counts(self, saved: Snapshot) -> dict[str, int]:
        """Return how far a saved training is, by its own count."""
        model, position = _root(saved, "model"), _saved_position(saved)
        steps = model.a.get("num_timesteps") if isinstance(model, Object) else None
        return {"episodes": position.episodes, **({"step": steps} if type(steps) is int else {})}

    def reword(self, place: str, words: Words) -> Words:
        """Say it in the words of an SB3 script. See `wording`."""
        return wording.reword(place, words)

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
        """Lay a saved state over the training. A callback that only one side has is left out, and said; so
        is what belongs to another number of environments than the training has."""
        known = _saved_callbacks(saved)
        position = _saved_position(saved)
        resizing = resizing_of(saved, self._model)
        whole = saved
        if resizing is not None:
            saved = resizing.at_a_rollouts_begin(saved, position)
        both = {name: callback for name, callback in self._callbacks.items() if name in known}
        plan = graft.plan(
            _without(saved, [name for name in known if name not in both]),
            {**self.roots, CALLBACKS: both},
            self.policy,
            keep=keep if resizing is None else [*keep, *resizing.left_out()],
            trusted=trusted,
        )
        if resizing is not None:
            resizing.complete(plan, whole, self.skeleton(), position)
            if COUNT not in keep:
                # Judged as a change already, unless nobody knows how the run was born.
                plan.differences.append(Difference("error", COUNT, f"{resizing.before} -> {resizing.after}"))
        for names, level, detail in (
            ([n for n in self._callbacks if n not in known], "fresh", "was not saved and starts as built."),
            ([n for n in known if n not in both], "lost", "was saved and the program has it no more."),
        ):
            plan.differences += [
                Difference(level, place, detail)
                for place in (f"{CALLBACKS}/{name}" for name in names)
                if place not in keep
            ]
        for place, why in changes.obstacles(keep, _saved_position(saved)):
            plan.differences.append(Difference("error", place, why))
        return plan

    def _known(self) -> dict[str, Any]:
        model = self._model
        known: dict[str, Any] = {"algorithm": type(model).__name__, "total_timesteps": model._total_timesteps}
        known |= verdicts.record(self._surroundings.verdicts)
        optimizer = getattr(model.policy, "optimizer", None) or getattr(
            getattr(model, "actor", None), "optimizer", None
        )
        if optimizer is not None:
            known["learning_rate"] = float(optimizer.param_groups[0]["lr"])
        buffer = getattr(model, "replay_buffer", None)
        if buffer is not None:
            known["buffer_rows"] = int(buffer.size()) * int(buffer.n_envs)
        if model.env is not None:
            known["env_seeds"] = seeds(model.env)
            known["worker_status"] = worker_status(model.env)
        return known


def _root(saved: Snapshot, name: str) -> Value:
    for component in saved.components.values():
        if name in component.roots:
            return component.roots[name]
    return None


def _saved_callbacks(saved: Snapshot) -> list[str]:
    node = _root(saved, CALLBACKS)
    return list(node.v) if isinstance(node, Dict) and node.v is not None else []


def _saved_position(saved: Snapshot) -> Position:
    node = _root(saved, "position")
    record = node.v if isinstance(node, Dict) and node.v is not None else {}
    return Position.from_record({k: v for k, v in record.items() if isinstance(v, (str, int))})


def _without(saved: Snapshot, names: list[str]) -> Snapshot:
    """Return `saved` without these callbacks."""
    if not names:
        return saved
    gone = {f"{CALLBACKS}/{name}" for name in names}
    changed = copy(saved)
    changed.components = {}
    for key, component in saved.components.items():
        kept = copy(component)
        kept.roots = {place: node for place, node in component.roots.items() if not _below(place, gone)}
        node = kept.roots.get(CALLBACKS)
        if isinstance(node, Dict) and node.v is not None:
            kept.roots[CALLBACKS] = Dict(id=node.id, v={k: v for k, v in node.v.items() if k not in names})
        changed.components[key] = kept
    return changed


def _below(place: str, tops: set[str]) -> bool:
    return any(place == top or place.startswith(f"{top}/") for top in tops)
