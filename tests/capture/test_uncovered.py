"""What the code of a program changes beside the state is named by the first save; what is only read is not."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import gymnasium
import numpy as np
import pytest

from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.capture.uncovered import MOST_FUNCTIONS, UncoveredWarning, uncovered
from unbroken.repo.repository import Repository
from unbroken.state import walk
from unbroken.types import Fidelity

SEEN: list[int] = []
COUNTS: dict[str, int] = {}
ROWS: dict[str, list[int]] = {"a": []}
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


class AppendsToAnItem:
    def act(self, key: str) -> None:
        ROWS[key].append(1)


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


class Derived(KeepsInItsClass):
    def act(self) -> None:
        super().history[self.index() if self.history else 0] = 1

    def index(self) -> int:
        return 0


class UsesWhatADerivedOneHas:
    def act(self) -> None:
        self.kept.append(1)  # type: ignore[attr-defined]  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]


class Has(UsesWhatADerivedOneHas):
    kept: list[int] = []


class Waits:
    def act(self, other: object) -> bool:
        return GENERATOR is other or WORLD is other


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
    (AppendsToAnItem(), "changes ROWS, a global of"),
    (SetsACell(), "changes GRID, a global of"),
    (Assigns(), "assigns best, a global of"),
    (Draws(), "draws from GENERATOR, a global of"),
    (Evaluates(), "acts on WORLD, a global of"),
    (CountsInItsClass(), "assigns CountsInItsClass.total, an attribute of a class"),
    (KeepsInItsClass(), "changes KeepsInItsClass.history, an attribute of a class"),
    (StepsOneOfItsClass(), "acts on StepsOneOfItsClass.world, an attribute of a class"),
    (Derived(), "changes KeepsInItsClass.history, an attribute of a class"),
    (Has(), "changes Has.kept, an attribute of a class"),
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
    assert found(mine=AppendsToAnItem(), rows=ROWS["a"]) == []
    assert found(mine=[Reads(), Waits()], rate=schedule(0.1)) == []
    assert (
        found(mine=[Appends(), SetsAnItem(), Draws()], seen=SEEN, counts=COUNTS, kept=[GENERATOR, DICE]) == []
    )


class Physics:
    """A part of an environment, which keeps its state in its class."""

    states: dict[int, float] = {}

    def move(self) -> None:
        Physics.states[id(self)] = 1.0


class World(gymnasium.Env[Any, Any]):
    """Tried out as a whole: its verdict says what does not come back."""

    def __init__(self) -> None:
        self.physics = Physics()
        self.observe = lambda: SEEN.append(1)

    def step(self, action: Any) -> Any:
        self.physics.move()
        COUNTS["steps"] = 1


def test_no_code_of_what_an_environment_holds_is_read() -> None:
    world = World()
    assert found(env=world) == []
    assert found(env=[gymnasium.wrappers.TimeLimit(world, 3)], again=world.physics) == []
    (named,) = found(env=world, mine=Physics())
    assert named == "mine: changes Physics.states, an attribute of a class"


class Holds:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("roots", "advised", "not_advised"),
    [
        ({"callbacks": {"Mine": Appends()}}, "attribute of the callback", "register_env_capturer"),
        ({"mine": Appends()}, "in an attribute of an object that is saved", "register_env_capturer"),
        ({"mine": Appends()}, "in an attribute of an object that is saved", "callback"),
    ],
)
def test_the_advice_is_right_for_what_is_lost(roots: dict[str, Any], advised: str, not_advised: str) -> None:
    with pytest.warns(UncoveredWarning, match="changes SEEN") as warned:
        GraftSource(roots, policy_of_loaded()).capture()
    assert advised in str(warned[0].message)
    assert not_advised not in str(warned[0].message)


def test_for_an_environment_a_capturer_is_advised_and_no_callback() -> None:
    world = World()
    world.physics = Holds(number for number in range(3))  # type: ignore[assignment]
    with pytest.warns(UncoveredWarning, match="env/physics/value: builtins:generator") as warned:
        GraftSource({"env": world}, policy_of_loaded()).capture()
    assert "unbroken.register_env_capturer" in str(warned[0].message)
    assert "attribute of" not in str(warned[0].message)


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


ARMED: list[bool] = []


def alarm(*_: object) -> Any:
    if ARMED:
        raise AssertionError("code of the program was run")


class AlarmingMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        alarm()
        return super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        alarm()
        return super().__subclasscheck__(subclass)

    def __getattribute__(cls, name: str) -> Any:
        alarm()
        return super().__getattribute__(name)


class Alarming(metaclass=AlarmingMeta):
    history: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        alarm()
        return super().__getattribute__(name)

    def act(self) -> None:
        self.history.append(1)
        SILENT.append(1)  # pyright: ignore[reportAttributeAccessIssue]
        Alarming.history = []


class Silent:
    @property
    def __class__(self) -> Any:
        return alarm() or Silent

    @__class__.setter
    def __class__(self, value: Any) -> None:
        alarm()

    def __getattr__(self, name: str) -> Any:
        alarm()
        raise AttributeError(name)


SILENT = Silent()


def test_nothing_of_the_program_is_run_to_find_it() -> None:
    mine = Alarming()
    walked = walk.walk({"mine": mine}, policy_of_loaded())
    ARMED.append(True)
    try:
        told = [note.detail for note in uncovered(walked)]
    finally:
        ARMED.clear()
    assert told == ["changes Alarming.history, an attribute of a class"]


def with_methods(count: int) -> object:
    """An object with so many methods, of which the last changes something."""
    source = "\n".join(f"  def f{i}(self): pass" for i in range(count - 1))
    space = {"__name__": __name__, "SEEN": SEEN}
    exec(f"class Large:\n{source}\n  def last(self): SEEN.append(1)", space)
    return space["Large"]()  # type: ignore[operator]


def test_a_search_that_is_cut_short_says_so_and_one_that_is_not_does_not() -> None:
    (named,) = found(mine=with_methods(MOST_FUNCTIONS))
    assert "changes SEEN" in named
    source = GraftSource({"mine": with_methods(MOST_FUNCTIONS + 1)}, policy_of_loaded())
    with pytest.warns(UncoveredWarning, match="At mine only 2,000 functions of the program were searched"):
        first = source.capture()
    for snapshot in (first, source.capture()):
        assert [note.kind for note in snapshot.notes] == ["cut short"]
