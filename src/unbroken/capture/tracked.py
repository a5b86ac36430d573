"""What a person's loop has handed over to be saved, as a source.

Global generators, variables and counters are always in it. Environments among the tracked objects are
watched as their capture needs it.

Not promised: anything of a loop that was not tracked. `untracked` finds what looks forgotten.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sized
from functools import reduce
from typing import TYPE_CHECKING, Any

from unbroken.capture.delegate import delegate_of
from unbroken.capture.environments import Verdict, attach, chain
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.probe import probe
from unbroken.capture.rings import ring_of
from unbroken.capture.source import ENVIRONMENTS, GraftSource, policy_of_loaded
from unbroken.engine import changes
from unbroken.errors import ConfigError
from unbroken.state.lookup import Kind, lookup
from unbroken.state.nodes import PLAIN, class_name
from unbroken.state.policy import Codec, Policy
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity, worse

RESERVED = ("vars", "counters", "generators")


class Variables:
    """Attributes that come back: `run.vars.obs = obs`."""

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:  # only for names that are not set
        raise AttributeError(f"run.vars.{name} was never set; set it before the loop begins.")


class Counters:
    """What a run counts by itself."""

    def __init__(self) -> None:
        self.episodes = 0
        self.metrics: dict[str, float] = {}
        self.stopped = False


class Tracked:
    """The objects of one training by name, and the variables and counters that come with them."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}
        self.vars = Variables()
        self.counters = Counters()
        self._generators = GlobalGenerators()
        self._attached: dict[str, Verdict] = {}
        self._kinds: dict[str, Verdict] = {}

    def add(self, objects: Mapping[str, object]) -> None:
        """Track these objects.

        Raises:
            ConfigError: a name is taken, or a value cannot be changed in place (a number, a string).
        """
        for name, value in objects.items():
            if name in RESERVED or name in self.objects:
                raise ConfigError(f"{name!r} is tracked already.", hint="Choose another name.")
            if type(value) in PLAIN or isinstance(value, (tuple, frozenset, bytes)):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}, which cannot be changed in place.",
                    hint=f"Keep it in run.vars.{name}.",
                )
            self.objects[name] = value

    def source(self) -> TrackedSource:
        """Return the source over what is tracked now. An environment of no known family is tried out first."""
        roots: dict[str, object] = {
            **self.objects,
            "vars": self.vars,
            "counters": self.counters,
            "generators": self._generators,
        }
        return TrackedSource(roots, self._policy(), facts=self._facts, promises=self._watch_environments())

    def _watch_environments(self) -> dict[str, Promise]:
        """Put in place what the capture of the tracked environments needs, and return what it promises.

        One of no known family is built twice in another process and tried out; that takes seconds.
        """
        if "gymnasium" not in sys.modules:
            return {}
        core: Any = sys.modules["gymnasium"]
        promise = Promise(Fidelity.EXACT)
        for name, value in self.objects.items():
            if not isinstance(value, (core.Env, core.vector.VectorEnv)):
                continue
            if name not in self._attached:
                self._attached[name] = self._attach(value)
            verdict = self._attached[name]
            promise = worse(promise, Promise(verdict.fidelity, f"{name}: {verdict.reason}"))
        return {ENVIRONMENTS: promise} if self._attached else {}

    def _attach(self, env: Any) -> Verdict:
        """Return the worst verdict on the members of a vector, each looked at by its own kind; of a single
        environment the verdict on it."""
        members = next((inner for layer in chain(env) if (inner := vars(layer).get("envs"))), None)
        if members is None:
            # A vector without members in this process cannot be tried out; what it is, its class tells.
            known = self._probed(env) if isinstance(env, sys.modules["gymnasium"].Env) else None
            return attach(env, verdict=known).verdict
        found = [attach(member, verdict=self._probed(member)).verdict for member in members]
        return reduce(worse, found)

    def _probed(self, env: Any) -> Verdict:
        kind = "/".join(class_name(type(layer)) for layer in chain(env))
        if kind not in self._kinds:
            self._kinds[kind] = probe(env)
        return self._kinds[kind]

    def _policy(self) -> Policy:
        loaded = policy_of_loaded()
        memory = lookup(loaded)
        codecs: dict[str, Codec] = {}
        components: dict[str, str] = {}
        keys: dict[str, str] = {}
        for name, value in self.objects.items():
            facts = memory.facts(type(value))
            if facts.structural and name.startswith("target"):
                keys[name] = "target_weights"
            if facts.structural or facts.component or facts.kind not in (Kind.OBJECT, Kind.OPAQUE):
                continue
            delegate = delegate_of(value)
            if delegate is not None:
                codecs[class_name(type(value))] = delegate
            if facts.kind is Kind.OBJECT and _is_buffer(name, value):
                components[class_name(type(value))] = "replay_buffer"
        return loaded.merged(_gradients(), Policy(codecs=codecs, components=components, component_keys=keys))

    def _facts(self) -> Mapping[str, object]:
        found: dict[str, object] = {"episodes": self.counters.episodes}
        for name, value in self.objects.items():
            groups = getattr(value, "param_groups", None)
            if groups and "learning_rate" not in found:
                found["learning_rate"] = float(groups[0]["lr"])
            if _is_buffer(name, value) and isinstance(value, Sized):
                found["buffer_rows"] = len(value)
        return found


def _gradients() -> Policy:
    """A person's own loop may gather gradients over several iterations."""
    if "torch" not in sys.modules:
        return Policy()
    from unbroken.capture.torch import WITH_GRADIENTS  # imports torch, which this module must not

    return WITH_GRADIENTS


def _is_buffer(name: str, value: object) -> bool:
    return ring_of(value) is not None or "buffer" in f"{name} {type(value).__name__}".lower()


class TrackedSource(GraftSource):
    """What stands in `run.vars` was put there to come back: the checkpoint's value wins."""

    def judge(self, change: changes.Change) -> changes.Verdict:
        if change.place.partition("/")[0] in RESERVED:
            return changes.Verdict.SAVED
        return super().judge(change)
