"""What is written is the state at the call of `save`, whatever training does while it is being written."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot
from unbroken.state.staging import own

Mutation = Callable[[Any], object]


class HeldBack(GraftSource):
    """Holds the writer's thread back until training has changed everything."""

    def __init__(self, roots: dict[str, object]) -> None:
        super().__init__(roots, policy_of_loaded())
        self.gate = threading.Event()
        self.gate.set()

    def sick_places(self, snapshot: Snapshot) -> dict[str, str]:
        self.gate.wait()
        return super().sick_places(snapshot)


def saved_and_truth(tmp_path: Path, value: Any, mutate: Mutation) -> tuple[Snapshot, Snapshot, Snapshot]:
    """Return what was saved, what it should be, and what the state is after the mutation."""
    source = HeldBack({"root": {"value": value}})
    engine = CheckpointEngine(source, Settings(root=tmp_path / "runs", job="run"), environment={})
    engine.resume()
    truth = own(source.capture())
    source.gate.clear()
    engine.save(1, reason="test")
    mutate(value)
    source.gate.set()
    engine.close()
    return engine.load(1), truth, source.capture()


def fill(array: Any) -> None:
    array[...] = 7


VALUES: dict[str, tuple[Callable[[Path], Any], Mutation]] = {
    "small array": (lambda _: np.arange(5.0), fill),
    "large array": (lambda _: np.arange(500_000.0), fill),
    "fortran array": (lambda _: np.asfortranarray(np.arange(2e4).reshape(100, 200)), fill),
    "view": (lambda _: np.arange(4000.0)[::2], fill),
    "boolean array": (lambda _: np.zeros(3000, bool), fill),
    "array of objects": (lambda _: np.array([[1], {"a": 2}, None], object), lambda a: a[0].append(5)),
    "memmap": (
        lambda path: np.memmap(path / "map", np.float32, "w+", shape=(3000,)),
        lambda a: a.__setitem__(slice(None), 9),
    ),
    "list": (lambda _: [1, 2, [3]], lambda v: v[2].append(4)),
    "list of floats": (lambda _: [0.5] * 1000, lambda v: v.__setitem__(10, 0.25)),
    "deque": (lambda _: deque([np.zeros(2), 2], maxlen=2), lambda v: v.append(3)),
    "deque's array": (lambda _: deque([np.zeros(2)]), lambda v: fill(v[0])),
    "dict": (lambda _: {"a": {"b": 1}}, lambda v: v["a"].update(b=2)),
    "set": (lambda _: {1, 2}, lambda v: v.add(3)),
    "bytearray": (lambda _: bytearray(5000), lambda v: v.__setitem__(100, 1)),
    "generator": (lambda _: np.random.default_rng(1), lambda g: g.random()),
    "legacy generator": (lambda _: np.random.RandomState(1), lambda g: g.standard_normal()),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_mutation_after_the_call_does_not_show(tmp_path: Path, kind: str) -> None:
    make, mutate = VALUES[kind]
    saved, truth, after = saved_and_truth(tmp_path, make(tmp_path), mutate)
    assert compare(saved, truth) == []
    assert compare(saved, after) != [], "the mutation has to change something, else this proves nothing"


TENSORS: dict[str, Callable[[Any], Any]] = {
    "small tensor": lambda torch: torch.zeros(3),
    "large tensor": lambda torch: torch.zeros(300_000),
    "bfloat16 tensor": lambda torch: torch.zeros(3000, dtype=torch.bfloat16),
    "transposed tensor": lambda torch: torch.arange(6000.0).reshape(60, 100).t(),
    "module": lambda torch: torch.nn.Linear(50, 50),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_mutation_of_a_tensor_does_not_show(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch")

    def mutate(value: Any) -> None:
        with torch.no_grad():
            (value.weight if isinstance(value, torch.nn.Module) else value).fill_(7)

    saved, truth, after = saved_and_truth(tmp_path, TENSORS[kind](torch), mutate)
    assert compare(saved, truth) == []
    assert compare(saved, after) != []


def test_an_optimizer_that_goes_on_does_not_show(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(40, 40)
    optimizer = torch.optim.Adam(net.parameters())

    def step(_: Any) -> None:
        net(torch.ones(40)).sum().backward()
        optimizer.step()

    step(None)
    saved, truth, after = saved_and_truth(tmp_path, {"net": net, "optimizer": optimizer}, step)
    assert compare(saved, truth) == []
    assert {d.component for d in compare(saved, after)} == {"policy_weights", "optimizer_states"}
