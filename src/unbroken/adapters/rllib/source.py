"""One Algorithm as the engine sees it: what is captured, in all its processes, and how it is laid over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unbroken.adapters.rllib import changes
from unbroken.adapters.rllib.actors import LearnerActors, RunnerActors
from unbroken.adapters.rllib.agent import constants, runner_roots, seeds
from unbroken.adapters.rllib.callbacks import Callbacks
from unbroken.adapters.rllib.config import settings_of
from unbroken.adapters.rllib.environments import Surroundings
from unbroken.adapters.rllib.policy import LEARNERS, RUNNERS, driver_policy
from unbroken.adapters.rllib.traffic import PROMISE, Traffic
from unbroken.capture import verdicts
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import ENVIRONMENTS, GraftSource
from unbroken.engine.changes import Change, Verdict
from unbroken.engine.wording import Words
from unbroken.state.graft import Difference, Graft
from unbroken.state.pickles import Trust
from unbroken.state.snapshot import Promise, Snapshot
from unbroken.types import Fidelity, worse

RECREATED = "env_runners_recreated"
RESIZED = "numbers_of_actors_changed"
ACTORS = {"num_env_runners": (RUNNERS, ENVIRONMENTS), "num_learners": (LEARNERS,)}
"""What says how many actors there are -> the components that hold them."""


class AlgorithmSource(GraftSource):
    """Source over an Algorithm, its learners, env runners, replay buffer and callbacks, and the generators.

    `progress` counts what the checkpoints of a run must know and RLlib does not keep.
    """

    def __init__(self, algorithm: Any, around: Surroundings, traffic: Traffic | None = None) -> None:
        self.progress: dict[str, int] = {RECREATED: 0, RESIZED: 0}
        self._algorithm = algorithm
        self._around = around
        self._traffic = traffic
        self._resized: tuple[str, ...] = ()
        """Which numbers of actors are others than those of the checkpoint that this process goes on from."""
        roots: dict[str, object] = {
            changes.CONFIG: settings_of(algorithm.config),
            "environments": ", ".join(dict.fromkeys(around.names)),
            "progress": self.progress,
            **({} if traffic is None else {"dropped": traffic.dropped}),
            **parts_of(algorithm),
            "callbacks": Callbacks(algorithm.callbacks),
            # Last: everything before may draw from them.
            "generators": GlobalGenerators(),
        }
        super().__init__(
            roots,
            driver_policy(),
            facts=self._known,
            promises={
                ENVIRONMENTS: around.promise,
                RUNNERS: worse(around.promise_of_runners, _promise_of_evaluation(algorithm)),
            },
        )

    def capture(self) -> Snapshot:
        """Return the state, as `GraftSource` does; less is promised once an env runner has been lost, and
        of an asynchronous algorithm, which is brought to rest first."""
        if self._traffic is not None:
            self._traffic.halt()
        snapshot = super().capture()
        if self._traffic is not None:
            snapshot.counters.update(self._traffic.dropped)
            _lower(snapshot, (RUNNERS, LEARNERS), PROMISE)
        lost = self.progress[RECREATED]
        if lost:
            reason = f"{lost} env runners died and began anew, with the seed of none before them"
            _lower(snapshot, (RUNNERS,), Promise(Fidelity.APPROXIMATE, reason))
        for name in ACTORS if self.progress.get(RESIZED) else self._resized:
            reason = f"{name} was changed: what one of them has is restored by its index, and what others had is not"
            _lower(snapshot, ACTORS[name], Promise(Fidelity.APPROXIMATE, reason))
        return snapshot

    def judge(self, change: Change) -> Verdict:
        """Say what becomes of a change. See `changes`."""
        return changes.judge(change, self._around.settings)

    def reword(self, place: str, words: Words) -> Words:
        """Say it in the words of an RLlib script. See `changes`."""
        return changes.reword(place, words)

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
        """Lay a saved state over the Algorithm. Touches nothing."""
        # Another number of actors is allowed by its setting, and met where they are.
        self._resized = tuple(name for name in ACTORS if f"{changes.CONFIG}/{name}" in keep)
        kept = [
            f"{name.removeprefix('num_')}/{name}" for name in ACTORS if f"{changes.CONFIG}/{name}" in keep
        ]
        graft = super().plan(saved, keep=[*keep, *kept], trusted=trusted)
        graft.differences += [
            Difference(
                "error", f"{changes.CONFIG}/{name}", "0 cannot become another number, nor another number 0"
            )
            for name in self._resized
            if (name.removeprefix("num_") in self.roots) != _has_root(saved, name.removeprefix("num_"))
        ]
        return graft

    def restored_all(self) -> None:
        """Keep in mind, for all checkpoints to come, what this start has changed."""
        self.progress[RESIZED] = self.progress.get(RESIZED, 0) + len(self._resized)

    def _known(self) -> dict[str, Any]:
        algorithm = self._algorithm
        known: dict[str, Any] = {
            "algorithm": type(algorithm).__name__,
            **verdicts.record(self._around.verdicts),
        }
        known["env_seeds"] = [seed for runner in _local_runners(algorithm) for seed in seeds(runner)]
        known["worker_status"] = [
            {"group": name, **told}
            for name, root in self.roots.items()
            if isinstance(root, RunnerActors)
            for told in root.told
        ]
        learner = algorithm.learner_group._learner
        optimizers = getattr(learner, "_named_optimizers", None)
        if optimizers:
            known["learning_rate"] = float(next(iter(optimizers.values())).param_groups[0]["lr"])
        buffer = algorithm.local_replay_buffer
        if buffer is not None and hasattr(buffer, "get_num_timesteps"):
            known["buffer_rows"] = int(buffer.get_num_timesteps())
        return known


def _promise_of_evaluation(algorithm: Any) -> Promise:
    """Return what is promised of runners that evaluate in processes of their own."""
    group = algorithm.eval_env_runner_group
    if group is None or not group.num_remote_env_runners():
        return Promise(Fidelity.EXACT)
    reason = (
        "evaluation in processes of their own: how many steps the training has sampled, as these runners were told,"
        " can be an older number after a restart"
    )
    return Promise(Fidelity.APPROXIMATE, reason)


def _lower(snapshot: Snapshot, components: Iterable[str], promise: Promise) -> None:
    """Promise no more than this of these components, where they exist."""
    for name in components:
        if name in snapshot.promises:
            snapshot.promises[name] = worse(snapshot.promises[name], promise)


def _has_root(saved: Snapshot, root: str) -> bool:
    return any(root in component.roots for component in saved.components.values())


def parts_of(algorithm: Any) -> dict[str, object]:
    """Return what an Algorithm consists of, by the names of the field."""
    found: dict[str, object] = {**constants(), "algorithm": algorithm, "metrics": algorithm.metrics}
    learners = algorithm.learner_group
    if learners.is_local:
        found["learner"] = learners._learner
    else:
        found["learners"] = LearnerActors(learners)
    for prefix, group in (("", algorithm.env_runner_group), ("eval_", algorithm.eval_env_runner_group)):
        if group is None:
            continue
        if group.local_env_runner is not None:
            found |= runner_roots(group.local_env_runner, prefix)
        if group.num_remote_env_runners():
            found[f"{prefix}env_runners"] = RunnerActors(group)
    if algorithm.local_replay_buffer is not None:
        found["replay_buffer"] = algorithm.local_replay_buffer
    return found


def _local_runners(algorithm: Any) -> list[Any]:
    group = algorithm.env_runner_group
    return [group.local_env_runner] if group is not None and group.local_env_runner is not None else []
