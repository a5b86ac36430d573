"""What a person's loop has handed over to be saved, as a source.

Global generators, variables and counters are always in it. Environments among the tracked objects are
watched as their capture needs it.

Not promised: anything of a loop that was not tracked. `untracked` finds what looks forgotten.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, Protocol

from unbroken.capture.delegate import delegate_of
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.process_group import other_low_bits, unwrapped
from unbroken.capture.replicas import own_components, shared_world
from unbroken.capture.rings import is_buffer
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.capture.watched import WatchedEnvironments, is_environment
from unbroken.engine import changes
from unbroken.engine.world import World
from unbroken.errors import ConfigError
from unbroken.state import iterators, walk
from unbroken.state.contents import declared
from unbroken.state.iterators import is_made_anew
from unbroken.state.lookup import Kind, lookup
from unbroken.state.nodes import PLAIN, Object, class_name
from unbroken.state.policy import Codec, Policy
from unbroken.state.snapshot import Promise, Snapshot
from unbroken.types import Fidelity

if TYPE_CHECKING:
    from unbroken.engine.engine import CheckpointEngine
    from unbroken.engine.report import ResumeReport

RESERVED = ("vars", "counters", "generators")
_WEIGHTS = "policy_weights"


_RUNS = Policy(
    external_classes=frozenset({
        "unbroken.adapters.loop:Run", "unbroken.adapters.ray_train.run:TrainRun", "unbroken.adapters.tune.trial:Trial",
        "unbroken.engine.steps:Steps",
    })
)  # fmt: skip
"""What saves, which a program's trainer may hold, is no part of what is saved."""


class HearsOfCommits(Protocol):
    """A tracked object that wants to know when what was captured of it last is durable."""

    def checkpoint_committed(self) -> None:
        """Take note of it. Called in the writer's thread, while training goes on: be quick, and do not raise."""
        ...


class Variables:
    """Attributes that come back: `run.vars.obs = obs`."""

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:  # only for names that are not set
        raise AttributeError(
            f"run.vars.{name} was never set, or is not in the checkpoint from which the training goes on. Set it before"
            " the loop begins; if the script has come to need it since, begin another run."
        )


class Counters:
    """What a run counts by itself."""

    def __init__(self) -> None:
        self.episodes = 0
        self.metrics: dict[str, float] = {}
        self.stopped = False

    def record(self, episodes: int, metrics: Mapping[str, float]) -> None:
        """Count finished episodes and keep the latest value of each metric for the next checkpoint."""
        self.episodes += episodes
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def keep_numbers(self, reported: Mapping[str, Any]) -> None:
        """Keep the numbers among what a framework is told for the next checkpoint."""
        self.metrics.update(
            (name, float(value)) for name, value in reported.items() if type(value) in (int, float)
        )

    def save_if_due(self, engine: CheckpointEngine, step: int) -> bool:
        """Tell that the training is at a clean point; save if it is time. Return whether it was."""
        return engine.step(step, episodes=self.episodes, metrics=self.metrics)

    def save_end(self, engine: CheckpointEngine, report: ResumeReport, step: int) -> bool:
        """Commit the end of a loop, unless it was over when this process came. Return whether it was not."""
        if report.finished and report.step == step:
            return False
        engine.save(
            step, reason="end of training", position="end", episodes=self.episodes, metrics=self.metrics
        )
        return True


class Tracked:
    """The objects of one training by name, and the variables and counters that come with them."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}
        self.vars = Variables()
        self.counters = Counters()
        self.notes: dict[str, object] = {}
        """Plain facts that go with every checkpoint, for people and for whoever opens the run again."""
        self._generators = GlobalGenerators()
        self._watched = WatchedEnvironments()
        self._promises: dict[str, Promise] = {}

    def add(self, objects: Mapping[str, object]) -> None:
        """Track these objects.

        Raises:
            ConfigError: a name is taken, or a value cannot be changed in place (a number, a string, an iterator).
        """
        for name, value in objects.items():
            if name in RESERVED or name in self.objects:
                raise ConfigError(f"{name!r} is tracked already.", hint="Choose another name.")
            plain = type(value) in PLAIN or isinstance(value, (tuple, frozenset, bytes))
            if plain or is_made_anew(iterators.CODECS.get(class_name(type(value)))):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}, which cannot be changed in place.",
                    hint=f"Keep it in run.vars.{name}.",
                )
            self.objects[name] = unwrapped(value)
            if reason := other_low_bits(value):
                self._promises[_WEIGHTS] = Promise(Fidelity.APPROXIMATE, f"{name}: {reason}")

    def source(self) -> TrackedSource:
        """Return the source over what is tracked now. An environment of no known family is tried out first."""
        roots: dict[str, object] = {
            **self.objects,
            "vars": self.vars,
            "counters": self.counters,
            "generators": self._generators,
        }
        return TrackedSource(
            roots,
            self._policy(),
            facts=self._facts,
            promises={**self._promises, **self._watched.watch(self.objects)},
        )

    def _policy(self) -> Policy:
        loaded = policy_of_loaded()
        memory = lookup(loaded)
        codecs: dict[str, Codec] = {}
        components: dict[str, str] = {}
        keys: dict[str, str] = {}
        named = set(map(id, self.objects.values()))
        for name, value in self.objects.items():
            facts = memory.facts(type(value))
            if facts.structural and name.startswith("target"):
                keys[name] = "target_weights"
            if facts.structural or facts.component or facts.kind not in (Kind.OBJECT, Kind.OPAQUE):
                continue
            delegate = delegate_of(value, named)
            if delegate is not None:
                codecs[class_name(type(value))] = delegate
            if facts.kind is Kind.OBJECT and is_buffer(name, value):
                components[class_name(type(value))] = "replay_buffer"
        return loaded.merged(
            _own_loop(), _passes(), _RUNS, Policy(codecs=codecs, components=components, component_keys=keys)
        )

    def _facts(self) -> Mapping[str, object]:
        found: dict[str, object] = {"episodes": self.counters.episodes, **self.notes}
        environments = [value for value in self.objects.values() if is_environment(value)]
        if environments:
            from unbroken.capture.seeds import seeds_of  # for who has environments only

            found["env_seeds"] = [seed for env in environments for seed in seeds_of(env)]
        for name, value in self.objects.items():
            groups = declared(value, "param_groups")
            if groups and "learning_rate" not in found:
                found["learning_rate"] = float(groups[0]["lr"])
            if is_buffer(name, value) and isinstance(value, Sized):
                found["buffer_rows"] = len(value)
        return found


def _own_loop() -> Policy:
    """A person's own loop may gather gradients over several iterations, and build its optimizer anew."""
    if "torch" not in sys.modules:
        return Policy()
    from unbroken.capture.torch import REMADE, WITH_GRADIENTS  # imports torch, which this module must not

    return WITH_GRADIENTS.merged(REMADE)


def _passes() -> Policy:
    """A person's own loop may stand in the middle of a pass over a data loader."""
    if "torch.utils.data" not in sys.modules:
        return Policy()
    from unbroken.capture.loaders import PASSES  # imports torch

    return PASSES


class TrackedSource(GraftSource):
    """What stands in `run.vars` was put there to come back: the checkpoint's value wins.

    With `hyperparameters_win` the script's values in an optimizer's groups win even where training has
    changed them (a schedule of the learning rate): they are what a clone was made for.
    """

    hyperparameters_win = False

    def among(self, world: World | None) -> World | None:
        """Return the world for an engine over this source: what its objects have for each rank is no replica."""
        if world is None or world.size == 1:
            return world
        met = walk.walk(self.roots, self.policy, contents=False).met()
        return shared_world(world, own_components(met))

    def committed(self, snapshot: Snapshot) -> None:
        super().committed(snapshot)
        for value in self.roots.values():
            if callable(told := declared(value, "checkpoint_committed")):  # see `HearsOfCommits`
                told()

    def counts(self, saved: Snapshot) -> dict[str, int]:
        """Return the episodes that a saved run has counted."""
        roots = (component.roots.get("counters") for component in saved.components.values())
        counts = next((node.a for node in roots if isinstance(node, Object)), {})
        return {name: n for name, n in counts.items() if name == "episodes" and type(n) is int}

    def judge(self, change: changes.Change) -> changes.Verdict:
        if change.place.partition("/")[0] in RESERVED:
            return changes.Verdict.SAVED
        if self.hyperparameters_win and change.kind == "value" and "/param_groups/" in change.place:
            return changes.Verdict.NEW_VALUE
        return super().judge(change)
