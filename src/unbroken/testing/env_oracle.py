"""The three-way oracle for environments: undisturbed, restored in a fresh process, and cold.

```python
from unbroken.testing.env_oracle import three_way

outcome = three_way(lambda: gymnasium.make("CartPole-v1"), before=30)
assert outcome.exact and outcome.told_apart
```

The undisturbed environment is never captured. A second one does the same and is captured; its state is
laid over a newly built environment in another process, which was elsewhere; that one takes the remaining
actions. The cold one takes them without a restore: it must differ, or the comparison proves nothing.
"""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbroken.capture.environments import Verdict, attach, env_policy
from unbroken.capture.tape import Witness
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.snapshot import Note, Snapshot
from unbroken.state.walk import capture

Make = Callable[[], Any]
Seen = list[str]
"""A digest of everything returned, step by step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the three environments returned after the cut."""

    undisturbed: Seen
    captured: Seen
    restored: Seen
    cold: Seen
    readback: list[str]
    """Places at which the restored state, captured again, differs from the saved one."""
    notes: list[Note]
    verdict: Verdict

    @property
    def exact(self) -> bool:
        """Whether the restored environment went on as the undisturbed one, and capturing left no trace."""
        return self.undisturbed == self.restored == self.captured and not self.readback

    @property
    def told_apart(self) -> bool:
        """Whether an environment that is not restored would have been noticed."""
        return self.undisturbed != self.cold


def follow(env: Any, actions: list[Any]) -> Seen:
    """Step through the actions, resetting where an episode ends; return a digest of each answer."""
    seen: Seen = []
    for action in actions:
        witness = Witness()
        result = env.step(action)
        witness.see(*result[:4])
        if result[2] or result[3]:
            witness.see(env.reset()[0])
        seen.append(witness.hexdigest())
    return seen


def _actions(make: Make, count: int, seed: int) -> list[Any]:
    env = make()
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(count)]
    env.close()
    return actions


def _elsewhere(make: Make) -> Any:
    env = make()
    env.action_space.seed(0)
    env.reset(seed=987_654)
    return env


def three_way(
    make: Make,
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
    follow(undisturbed, actions[:before])
    follow(captured, actions[:first])
    attachment = attach(captured, verdict=verdict)
    follow(captured, actions[first:before])
    snapshot = capture({"env": captured}, env_policy())
    restored, readback = _elsewhere_in_another_process(make, snapshot, actions[before:], verdict)
    outcome = Outcome(
        undisturbed=follow(undisturbed, actions[before:]),
        captured=follow(captured, actions[before:]),
        restored=restored,
        cold=follow(_elsewhere(make), actions[before:]),
        readback=readback,
        notes=snapshot.notes,
        verdict=attachment.verdict,
    )
    attachment.detach()
    return outcome


def _elsewhere_in_another_process(
    make: Make, snapshot: Snapshot, actions: list[Any], verdict: Verdict | None
) -> tuple[Seen, list[str]]:
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with gymnasium
    with tempfile.TemporaryDirectory(prefix="unbroken-oracle-") as folder:
        task, answer = Path(folder) / "task", Path(folder) / "answer"
        task.write_bytes(cloudpickle.dumps((make, snapshot, actions, verdict)))
        done = subprocess.run(
            [sys.executable, "-m", "unbroken.testing.env_oracle", str(task), str(answer)],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(done.stderr.decode(errors="replace"))
        seen, readback = pickle.loads(answer.read_bytes())  # noqa: S301 - from our own child
    return seen, readback


def main() -> None:
    """Be the fresh process: restore, read back, go on."""
    make, snapshot, actions, verdict = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - from our parent
    env = _elsewhere(make)
    attach(env, verdict=verdict)
    policy = env_policy()
    plan(snapshot, {"env": env}, policy).apply()
    again = capture({"env": env}, policy)
    readback = [difference.place for difference in compare(snapshot, again)]
    Path(sys.argv[2]).write_bytes(pickle.dumps((follow(env, actions), readback)))


if __name__ == "__main__":
    main()
