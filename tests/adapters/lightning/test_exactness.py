"""The proof: an undisturbed run (U), the same killed and resumed in another process (R), and resumed with
one part left cold (C). R is U bit for bit; C is not, or the test would prove nothing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .children import Runner, differences

pytest.importorskip("lightning")

FREELY = {"seconds": 1e-6}
"""At every batch: in the middle of an accumulation of gradients, too."""


@pytest.fixture(scope="module")
def first() -> Iterator[Runner]:
    runner = Runner(1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def second() -> Iterator[Runner]:
    runner = Runner(2)
    yield runner
    runner.close()


@dataclass(frozen=True)
class Case:
    """`kill` counts batches. Each of `cold` is left cold in a run of its own."""

    name: str
    kill: int
    every: int | dict[str, float]
    trainer: dict[str, Any]
    cold: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, str(self.kill), *self.options])


DQN = {"max_steps": 60}
IN_THREES = {"max_steps": 8, "accumulate_grad_batches": 3}
CASES = [
    Case(
        "dqn", 33, 7, DQN,
        ("module/buffer", "module/env", "generators", "loop/_data_fetcher/batches", "optimizers", "module/rng"),
    ),
    Case("dqn", 13, FREELY, IN_THREES, ("gradients",)),
    Case("streamed", 21, 5, {"max_epochs": 2}, ("passes",), {"kind": "own"}),
    Case("regression", 18, 5, {"max_epochs": 4}, ("generators", "passes")),
]  # fmt: skip
MORE = [
    Case("dqn", 44, 5, DQN, ("module/epsilon", "schedulers", "module/_modules/target", "module/obs", "module/returns")),
    Case("dqn", 1, 1, DQN, ()),
    Case("dqn", 31, 4, DQN, ("module/buffer",), {"single": True}),
    Case("dqn", 59, 1, DQN, ("module/epsilon",)),
    Case("dqn", 13, FREELY, {"max_steps": 8}, ("module/epsilon",), {"manual": True}),
    Case("dqn", 14, FREELY, IN_THREES, ("optimizers",)),
    Case("regression", 6, 1, {"max_epochs": 3}, ("generators",)),
    Case("regression", 12, 1, {"max_epochs": 3}, ("optimizers",)),
    Case("regression", 13, 1, {"max_epochs": 3}, ("optimizers",)),
    Case("regression", 16, 5, {"max_steps": 20}, ("passes",)),
    Case("regression", 10, 1, {"max_epochs": 3, "val_check_interval": 2}, ("generators",)),
    Case("regression", 9, 1, {"max_epochs": 3, "limit_train_batches": 4}, ("generators",)),
    Case("regression", 9, 1, {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}, ("passes",)),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.exactness) for case in MORE)], ids=str
)
def test_a_killed_run_ends_as_the_undisturbed_one(
    case: Case, first: Runner, second: Runner, tmp_path: Path
) -> None:
    order: dict[str, Any] = {
        "case": case.name, "every": case.every, "trainer": case.trainer, "options": case.options,
        "log": str(tmp_path / "log"),
    }  # fmt: skip

    def said() -> str:
        return (tmp_path / "log").read_text()

    def run(runner: Runner, name: str, **more: Any) -> int:
        return int(runner.run(**order, root=str(tmp_path / name), out=str(tmp_path / f"{name}.json"), **more))

    def result(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / f"{name}.json").read_text())
        found.pop("report")
        return found

    assert run(first, "U") == 0, said()
    assert run(first, "R", kill=case.kill) == -9, said()
    for number in range(len(case.cold)):
        subprocess.run(["cp", "-r", tmp_path / "R", tmp_path / f"C{number}"], check=True)
    assert run(second, "R") == 0, said()
    assert "goes on at step" in said()
    assert " episodes" not in said(), "Lightning counts none, so none are said"
    # Of an iterator inside a generator's frame nobody can say how far it is; here the batch has used all of it.
    inexact = {"data_loaders"} if "single" in case.options else set[str]()
    assert set(re.findall(r"; approximate: ([\w, ]+)", said())) == inexact

    assert result("R") == result("U")
    assert differences(tmp_path / "U", tmp_path / "R") == []
    for number, part in enumerate(case.cold):
        assert run(second, f"C{number}", cold=[part]) == 0, said()
        assert result(f"C{number}") != result("U"), f"{part} left cold changes nothing"


@pytest.mark.parametrize(("name", "trainer"), [("dqn", DQN), ("regression", {"max_epochs": 3})])
def test_the_callback_changes_nothing_by_being_there(
    name: str, trainer: dict[str, Any], first: Runner, tmp_path: Path
) -> None:
    order: dict[str, Any] = {"case": name, "trainer": trainer, "every": 1, "log": str(tmp_path / "log")}
    assert first.run(**order, root=str(tmp_path / "a"), out=str(tmp_path / "with")) == 0
    assert first.run(**order, root=str(tmp_path / "b"), out=str(tmp_path / "without"), without=True) == 0
    saved, unsaved = (json.loads((tmp_path / name).read_text()) for name in ("with", "without"))
    assert saved.pop("report") != unsaved.pop("report")
    assert saved == unsaved
