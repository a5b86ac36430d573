"""What the code of a program changes beside the state is named by the first save; what is only read is not."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import gymnasium
import numpy as np
import pytest

from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.capture.uncovered import UncoveredWarning, uncovered
from unbroken.repo.repository import Repository
from unbroken.state import walk
from unbroken.types import Fidelity

SEEN: list[int] = []
COUNTS: dict[str, int] = {}
TABLE = [1, 2, 3]
GRID = np.zeros((3, 3))
RECENT: deque[int] = deque()
GENERATOR = np.random.default_rng(1)
DICE = random.Random(1)
WORLD = gymnasium.make("CartPole-v1")
best = 0.0


def remember(value: int) -> None:
    SEEN.append(value)


class Appends:
    def act(self) -> None:
        SEEN.append(1)


class AppendsElsewhere:
    def act(self) -> None:
        remember(TABLE[0])


class SetsAnItem:
    def act(self, key: str) -> None:
        COUNTS[key] = 1


class AddsToAnItem:
    def act(self, key: str) -> None:
        COUNTS[key.strip()] += 1


class SetsACell:
    def act(self, i: int, j: int) -> None:
        GRID[i, j + 1] = 1.0


class Assigns:
    def act(self) -> None:
        global best
        best = max(best, 1.0)


class Draws:
    def act(self) -> float:
        return GENERATOR.random() + DICE.random()


class Evaluates:
    def act(self) -> None:
        WORLD.reset()


class CountsInItsClass:
    total = 0

    def act(self) -> None:
        CountsInItsClass.total += 1


class KeepsInItsClass:
    history: list[int] = []

    def act(self) -> None:
        self.history.append(1)


class StepsOneOfItsClass:
    world = gymnasium.make("CartPole-v1")

    def act(self) -> None:
        self.world.step(0)


class InAFunctionInside:
    def act(self) -> list[int]:
        return [RECENT.popleft() for _ in range(2)]


class BehindAProperty:
    @property
    def newest(self) -> int:
        return RECENT.pop()


def behind_a_variable() -> object:
    total = [0]

    class Holds:
        def act(self) -> None:
            total.append(1)

    return Holds()


def a_world_behind_a_variable() -> object:
    world = gymnasium.make("CartPole-v1")

    class Holds:
        def act(self) -> None:
            world.step(0)

    return Holds()


CHANGES = [
    (Appends(), "changes SEEN, a global of"),
    (AppendsElsewhere(), "changes SEEN, a global of"),
    (SetsAnItem(), "changes COUNTS, a global of"),
    (AddsToAnItem(), "changes COUNTS, a global of"),
    (SetsACell(), "changes GRID, a global of"),
    (Assigns(), "assigns best, a global of"),
    (Draws(), "draws from GENERATOR, a global of"),
    (Evaluates(), "acts on WORLD, a global of"),
    (CountsInItsClass(), "assigns CountsInItsClass.total, an attribute of a class"),
    (KeepsInItsClass(), "changes KeepsInItsClass.history, an attribute of a class"),
    (StepsOneOfItsClass(), "acts on StepsOneOfItsClass.world, an attribute of a class"),
    (InAFunctionInside(), "changes RECENT, a global of"),
    (BehindAProperty(), "changes RECENT, a global of"),
    (behind_a_variable(), "changes total, a variable of behind_a_variable"),
    (a_world_behind_a_variable(), "acts on world, a variable of a_world_behind_a_variable"),
]


def found(**roots: object) -> list[str]:
    walked = walk.walk(roots, policy_of_loaded())
    return [f"{note.place}: {note.detail}" for note in uncovered(walked)]


@pytest.mark.parametrize(("value", "named"), CHANGES, ids=[type(value).__name__ for value, _ in CHANGES])
def test_what_code_changes_and_no_root_leads_to_is_named(value: object, named: str) -> None:
    assert any(one.startswith(f"mine: {named}") for one in found(mine=value))


class Reads:
    history: list[int] = []
    where = WORLD

    def __init__(self) -> None:
        self.history = []  # its own, so it is in the state
        self.count = 0

    def act(self, table: list[int]) -> object:
        table.append(TABLE[0])
        self.history.append(len(SEEN))
        self.count += GRID.shape[0] + COUNTS.get("x", 0)
        return WORLD.action_space, self.where.spec, Reads.history, [TABLE[i] for i in range(2)]


def schedule(initial: float) -> Callable[[float], float]:
    calls = [0]

    def rate(left: float) -> float:
        calls[0] += 1
        return initial * left

    return rate


def test_what_is_read_or_captured_is_not_named() -> None:
    assert found(mine=Reads(), rate=schedule(0.1)) == []
    assert (
        found(mine=[Appends(), SetsAnItem(), Draws()], seen=SEEN, counts=COUNTS, kept=[GENERATOR, DICE]) == []
    )


def test_the_component_is_not_captured_and_the_first_capture_says_so_once() -> None:
    source = GraftSource({"mine": Appends()}, policy_of_loaded())
    with pytest.warns(UncoveredWarning, match="mine: changes SEEN"):
        first = source.capture()
    for snapshot in (first, source.capture()):  # a warning of the second would be an error here
        promise = snapshot.promises["training_state"]
        assert promise.fidelity is Fidelity.NOT_CAPTURED
        assert "changes SEEN" in promise.reason


SCRIPT = dedent(
    """
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from unbroken.sb3 import CheckpointCallback

    seen = []


    class Mine(BaseCallback):
        def __init__(self):
            super().__init__()
            self.log = open("mine.log", "w")
            self.feed = (number for number in range(10**6))

        def _on_step(self):
            if self.n_calls:
                raise SystemExit("a step was done")
            seen.append(next(self.feed))


    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, device="cpu")
    model.learn(16, callback=[Mine(), CheckpointCallback(None, "runs", name_prefix="run")])
    """
)


def test_a_training_is_told_before_its_first_step_and_the_checkpoint_tells_it_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr.rstrip().endswith("a step was done")
    (warned,) = (line for line in done.stderr.splitlines() if "UncoveredWarning" in line)
    named = (
        "callbacks/Mine: changes seen, a global of __main__",
        "callbacks/Mine/feed",
        "an open file (mine.log)",
    )
    assert all(word in warned for word in named)
    assert "; not captured: callbacks" in done.stderr
    repository = Repository.open(tmp_path / "runs", "run")
    meta = repository.meta(repository.commits()[0])
    assert meta.fidelity["callbacks"].fidelity is Fidelity.NOT_CAPTURED
    assert any("changes seen" in note for note in meta.notes)
    assert any("mine.log" in note for note in meta.notes)
