"""The three-way oracle for environments: undisturbed, restored in a fresh process, and cold.

```python
from unbroken.testing.env_oracle import three_way

outcome = three_way(lambda: gymnasium.make("CartPole-v1"), before=30)
assert outcome.exact and outcome.told_apart
```

A vector of environments is compared by `three_way_vector` in the same way, wrappers, workers and all.

The undisturbed environment is never captured. A second one does the same and is captured; its state is
laid over a newly built environment in another process, which was elsewhere; that one takes the remaining
actions. The cold one takes them without a restore: it must differ, or the comparison proves nothing.
"""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unbroken.capture.environments import Verdict, attach, env_policy
from unbroken.capture.source import policy_of_loaded
from unbroken.capture.tape import Witness
from unbroken.capture.volatile import volatile_places
from unbroken.capture.watched import WatchedEnvironments
from unbroken.engine.changes import within
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Note, Promise, Snapshot
from unbroken.state.walk import capture
from unbroken.types import Fidelity

__all__ = ["Comparison", "Dialect", "Outcome", "VectorOutcome", "three_way", "three_way_vector", "timeless"]

_Make = Callable[[], Any]
_Seen = list[str]
"""A digest of everything returned, step by step."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the environments returned after the cut."""

    undisturbed: _Seen
    captured: _Seen
    restored: _Seen
    cold: _Seen
    readback: list[str]
    """Places at which the restored state, captured again, differs from the saved one."""
    notes: list[Note]

    @property
    def exact(self) -> bool:
        """Whether the restored environment went on as the undisturbed one, and capturing left no trace."""
        return self.undisturbed == self.restored == self.captured and not self.readback

    @property
    def told_apart(self) -> bool:
        """Whether an environment that is not restored would have been noticed."""
        return self.undisturbed != self.cold


@dataclass(frozen=True, slots=True)
class Outcome(Comparison):
    """What came of one environment."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class VectorOutcome(Comparison):
    """What came of a vector."""

    promise: Promise


def _follow(env: Any, actions: list[Any]) -> _Seen:
    """Step through the actions, resetting where an episode ends; return a digest of each answer."""
    seen: _Seen = []
    for action in actions:
        witness = Witness()
        result = env.step(action)
        witness.see(*result[:4])
        if result[2] or result[3]:
            witness.see(env.reset()[0])
        seen.append(witness.hexdigest())
    return seen


def _actions(make: _Make, count: int, seed: int) -> list[Any]:
    env = make()
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(count)]
    env.close()
    return actions


def _elsewhere(make: _Make) -> Any:
    env = make()
    env.action_space.seed(0)
    env.reset(seed=987_654)
    return env


def three_way(
    make: _Make,
    *,
    before: int,
    after: int = 60,
    seed: int = 7,
    first: int = 0,
    verdict: Verdict | None = None,
) -> Outcome:
    """Cut after `before` steps and compare the next `after`. `first`: steps before the recorder comes."""
    actions = _actions(make, before + after, seed)
    undisturbed, captured = make(), make()
    for env in (undisturbed, captured):
        env.action_space.seed(seed)
        env.reset(seed=seed)
    _follow(undisturbed, actions[:before])
    _follow(captured, actions[:first])
    attachment = attach(captured, verdict=verdict)
    _follow(captured, actions[first:before])
    snapshot = capture({"env": captured}, env_policy())
    restored, readback = _in_another_process(_main_single, (make, snapshot, actions[before:], verdict))
    outcome = Outcome(
        undisturbed=_follow(undisturbed, actions[before:]),
        captured=_follow(captured, actions[before:]),
        restored=restored,
        cold=_follow(_elsewhere(make), actions[before:]),
        readback=readback,
        notes=snapshot.notes,
        verdict=attachment.verdict,
    )
    attachment.detach()
    return outcome


class Dialect:
    """How a vector is spoken to; this one is Gymnasium's. A subclass has to be importable in a fresh process."""

    def reset(self, vector: Any, seed: int) -> Any:
        """Reset all environments with seeds of their own, and return what comes back."""
        return vector.reset(seed=seed)

    def step(self, vector: Any, action: Any) -> Any:
        """Take a step, reset by hand what does not do so itself, and return what comes back, without clocks."""
        *answer, infos = vector.step(action)
        done = answer[2] | answer[3]
        if str(vector.metadata.get("autoreset_mode", "")).endswith("DISABLED") and done.any():
            answer.append(vector.reset(options={"reset_mask": done}))
        return [*answer, timeless(infos)]

    def watch(self, vector: Any) -> Promise:
        """Put in place what its capture needs."""
        return WatchedEnvironments().watch({"env": vector}).get("env_states", Promise(Fidelity.EXACT))

    def policy(self) -> Policy:
        """Return the rules by which it is walked."""
        return policy_of_loaded()

    def actions(self, vector: Any, count: int, seed: int) -> list[Any]:
        """Draw actions, from no generator of the vector."""
        space = copy.deepcopy(vector.action_space)
        space.seed(seed)
        return [space.sample() for _ in range(count)]


def timeless(infos: Any) -> Any:
    """Return what a step tells, without how long an episode took on the wall clock."""
    if isinstance(infos, (list, tuple)):
        several = cast("Sequence[Any]", infos)
        return [timeless(info) for info in several]
    if not isinstance(infos, dict):
        return infos
    told = cast("dict[str, Any]", infos)
    clocked = told.keys() >= {"r", "l", "t"}
    return {key: timeless(value) for key, value in told.items() if not (clocked and key in ("t", "_t"))}


def three_way_vector(
    make: _Make, *, before: int, after: int = 60, seed: int = 7, dialect: Dialect | None = None
) -> VectorOutcome:
    """Cut after `before` steps of a vector and compare the next `after`; of all environments together."""
    speaks = dialect or Dialect()
    undisturbed, captured, cold = make(), make(), make()
    try:
        actions = speaks.actions(undisturbed, before + after, seed)
        for vector in (undisturbed, captured):
            speaks.reset(vector, seed)
        speaks.reset(cold, _OTHER_SEED)
        promise = speaks.watch(captured)
        for vector in (undisturbed, captured):
            _follow_vector(speaks, vector, actions[:before])
        snapshot = capture({"env": captured}, speaks.policy())
        task = (make, snapshot, actions[before:], speaks)
        restored, readback = _in_another_process(_main_vector, task)
        return VectorOutcome(
            undisturbed=_follow_vector(speaks, undisturbed, actions[before:]),
            captured=_follow_vector(speaks, captured, actions[before:]),
            restored=restored,
            cold=_follow_vector(speaks, cold, actions[before:]),
            readback=readback,
            notes=snapshot.notes,
            promise=promise,
        )
    finally:
        for vector in (undisturbed, captured, cold):
            vector.close()


_OTHER_SEED = 987_654


def _follow_vector(speaks: Dialect, vector: Any, actions: list[Any]) -> _Seen:
    seen: _Seen = []
    for action in actions:
        witness = Witness()
        witness.see(speaks.step(vector, action))
        seen.append(witness.hexdigest())
    return seen


def _main_vector(
    make: _Make, snapshot: Snapshot, actions: list[Any], speaks: Dialect
) -> tuple[_Seen, list[str]]:
    """Be the fresh process of a vector: restore, read back, go on."""
    vector = make()
    try:
        speaks.reset(vector, _OTHER_SEED)
        speaks.watch(vector)
        policy = speaks.policy()
        plan(snapshot, {"env": vector}, policy).apply()
        again = capture({"env": vector}, policy)
        clocks = volatile_places(snapshot)
        readback = [found.place for found in compare(snapshot, again) if not within(found.place, clocks)]
        return _follow_vector(speaks, vector, actions), readback
    finally:
        vector.close()


def _main_single(
    make: _Make, snapshot: Snapshot, actions: list[Any], verdict: Verdict | None
) -> tuple[_Seen, list[str]]:
    """Be the fresh process of one environment: restore, read back, go on."""
    env = _elsewhere(make)
    attach(env, verdict=verdict)
    policy = env_policy()
    plan(snapshot, {"env": env}, policy).apply()
    again = capture({"env": env}, policy)
    readback = [difference.place for difference in compare(snapshot, again)]
    return _follow(env, actions), readback


def _in_another_process(
    there: Callable[..., tuple[_Seen, list[str]]], task: tuple[Any, ...]
) -> tuple[_Seen, list[str]]:
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with gymnasium
    with tempfile.TemporaryDirectory(prefix="unbroken-oracle-") as folder:
        asked, answer = Path(folder) / "task", Path(folder) / "answer"
        # A script that is started again imports what it has imported the first time: PyTorch has a generator, which
        # workers that were forked from it have too.
        loaded = ["torch"] if there is _main_vector and "torch" in sys.modules else []
        asked.write_bytes(cloudpickle.dumps((there.__name__, loaded, task)))
        done = subprocess.run(
            [sys.executable, "-m", "unbroken.testing.env_oracle", str(asked), str(answer)],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if done.returncode:
            raise AssertionError(done.stderr.decode(errors="replace"))
        seen, readback = pickle.loads(answer.read_bytes())  # noqa: S301 - from our own child
    return seen, readback


def main() -> None:
    """Be the fresh process."""
    name, loaded, task = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - from our parent
    for module in loaded:
        importlib.import_module(module)
    mains: dict[str, Callable[..., tuple[_Seen, list[str]]]] = {
        "_main_single": _main_single,
        "_main_vector": _main_vector,
    }
    there = mains[name]
    Path(sys.argv[2]).write_bytes(pickle.dumps(there(*task)))


if __name__ == "__main__":
    # Under its own name: what the parent has pickled refers to this module, not to `__main__`.
    importlib.import_module("unbroken.testing.env_oracle").main()
