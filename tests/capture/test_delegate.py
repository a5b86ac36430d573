"""What an object owns and does not tell of comes back beside the state that it tells."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from unbroken.capture.tracked import Tracked
from unbroken.state.diff import compare
from unbroken.state.nodes import Coded, Dict
from unbroken.state.snapshot import Snapshot

Told = dict[str, Any]


class Hook:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def act(self) -> None:
        self.optimizer.step()


class Slotted:
    __slots__ = ("part",)

    def __init__(self, part: Any) -> None:
        self.part = part


class Rows:
    """A buffer of a person's own."""

    def __init__(self) -> None:
        self.rows = np.zeros(4)
        self.count = 0


class Trainer:
    """Tells what it is told to tell, and takes nothing of it that is not a number."""

    def __init__(self, seed: int, own: Callable[[nn.Module], Any], tell: Callable[[Any], Told]) -> None:
        torch.manual_seed(seed)
        self.net = nn.Linear(2, 2)
        self.steps = 0
        self.own = own(self.net)
        self.tell = tell

    def state_dict(self) -> Told:
        return {"steps": self.steps, "net": self.net.state_dict(), **self.tell(self.own)}

    def load_state_dict(self, state: Told) -> None:
        self.steps = state["steps"]
        self.net.load_state_dict(state["net"])


def nothing(_: Any) -> Told:
    return {}


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.1)


def learn(trainer: Trainer, optimizer: torch.optim.Optimizer, times: int = 2) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        trainer.net(torch.ones(1, 2)).pow(2).sum().backward()
        optimizer.step()
    trainer.steps += times


def closure(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def act() -> None:
        optimizer.step()

    return act


WAYS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "an attribute": (adam, lambda own: own),
    "a hook": (lambda net: {"on_step": [Hook(adam(net))]}, lambda own: own["on_step"][0].optimizer),
    "a method of a hook": (lambda net: [Hook(adam(net)).act], lambda own: own[0].__self__.optimizer),
    "a partial": (lambda net: functools.partial(Hook, adam(net)), lambda own: own.args[0]),
    "a closure": (lambda net: closure(adam(net)), lambda own: own.__closure__[0].cell_contents),
    "a slot": (lambda net: (Slotted(adam(net)),), lambda own: own[0].part),
}


def source_of(trainer: object, **named: object) -> Any:
    tracked = Tracked()
    tracked.add({**named, "trainer": trainer})
    return tracked.source()


def restored(saved: Snapshot, twin: object, **named: object) -> list[str]:
    """Lay a state over a trainer, and return what stands against it."""
    source = source_of(twin, **named)
    graft = source.plan(saved)
    if not graft.errors:
        graft.apply()
        assert compare(saved, source.capture()) == []
    return [str(error) for error in graft.errors]


def beside(saved: Snapshot) -> list[str]:
    """Return what stands beside the state that the trainer told."""
    node = saved.components["training_state"].roots["trainer"]
    assert isinstance(node, Coded) and isinstance(node.v, Dict) and node.v.v is not None
    return [key for key in node.v.v if key != "state"]


@pytest.mark.parametrize("way", WAYS)
def test_an_optimizer_that_the_state_says_nothing_of_goes_on(way: str) -> None:
    own, optimizer = WAYS[way]
    original, twin = Trainer(1, own, nothing), Trainer(2, own, nothing)
    learn(original, optimizer(original.own))
    assert restored(source_of(original).capture(), twin) == []
    for trainer in (original, twin):
        learn(trainer, optimizer(trainer.own), 3)
    assert compare(source_of(original).capture(), source_of(twin).capture()) == []
    assert torch.equal(original.net.weight, twin.net.weight)


def test_one_that_the_state_holds_is_not_saved_a_second_time() -> None:
    def tell(own: Any) -> Told:
        return {"optimizer": own.state_dict()}

    trainer = Trainer(1, adam, tell)
    learn(trainer, trainer.own)
    assert beside(source_of(trainer).capture()) == []


def test_one_that_is_tracked_by_a_name_stays_there() -> None:
    trainer = Trainer(1, lambda net: Hook(adam(net)), nothing)
    learn(trainer, trainer.own.optimizer)
    for named in ({"optimizer": trainer.own.optimizer}, {"hook": trainer.own}):
        saved = source_of(trainer, **named).capture()
        assert beside(saved) == []
        twin = Trainer(2, lambda net: Hook(adam(net)), nothing)
        again = {"optimizer": twin.own.optimizer} if "optimizer" in named else {"hook": twin.own}
        assert restored(saved, twin, **again) == []
        assert len(twin.own.optimizer.state) == 2


def buffer_of(*numbers: float) -> Rows:
    rows = Rows()
    for number in numbers:
        rows.rows[rows.count] = number
        rows.count += 1
    return rows


def constant(value: int) -> nn.Module:
    net = nn.Linear(1, 1)
    net.weight.data.fill_(value)
    return net


PARTS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "numpy's generator": (np.random.default_rng, lambda it: it.random()),
    "an older one": (np.random.RandomState, lambda it: it.rand()),
    "Python's": (random.Random, lambda it: it.random()),
    "torch's": (
        lambda seed: torch.Generator().manual_seed(seed), lambda it: torch.rand(1, generator=it).item(),
    ),
    "a network": (
        constant,
        lambda it: it.weight.item(),
    ),
    "a value that is learned": (lambda seed: torch.full((1,), float(seed), requires_grad=True), lambda it: it.item()),
    "a deque": (lambda seed: deque([seed], maxlen=3), list),
    "a buffer": (lambda seed: {"buffer": buffer_of(*range(seed))}, lambda it: it["buffer"].count),
}  # fmt: skip


@pytest.mark.parametrize("what", PARTS)
def test_whatever_else_it_owns_comes_back(what: str) -> None:
    make, look = PARTS[what]
    original, twin = Trainer(1, lambda _: make(1), nothing), Trainer(2, lambda _: make(2), nothing)
    own = twin.own
    assert look(make(1)) != look(make(2))
    assert restored(source_of(original).capture(), twin) == []
    assert twin.own is own
    assert look(twin.own) == look(original.own)


def test_an_environment_that_it_owns_goes_on() -> None:
    def trainer(seed: int) -> Trainer:
        made = Trainer(seed, lambda _: gymnasium.make("CartPole-v1"), nothing)
        made.own.reset(seed=seed)
        return made

    original, twin = trainer(1), trainer(2)
    assert original.own.step(1)[0].tolist() != twin.own.step(1)[0].tolist()
    assert restored(source_of(original).capture(), twin) == []
    assert original.own.step(0)[0].tolist() == twin.own.step(0)[0].tolist()
    assert original.own.reset()[0].tolist() == twin.own.reset()[0].tolist()


def test_where_the_program_has_no_such_part_nothing_is_touched() -> None:
    original = Trainer(1, lambda net: Hook(adam(net)), nothing)
    learn(original, original.own.optimizer)
    twin = Trainer(2, lambda net: Hook(None), nothing)
    before = source_of(twin).capture()
    assert restored(source_of(original).capture(), twin) == [
        (
            "trainer/value/.own.optimizer: was saved beside the state that the object tells, and the program's has"
            " nothing at own.optimizer; build it as before, or track it by a name of its own."
        )
    ]
    assert compare(before, source_of(twin).capture()) == []


def test_an_optimizer_that_was_rebuilt_for_more_parameters_comes_back_beside_the_state() -> None:
    def head(net: nn.Module) -> Hook:
        return Hook(torch.optim.Adam([dict(net.named_parameters())["bias"]]))

    original, twin = Trainer(1, head, nothing), Trainer(2, head, nothing)
    original.own.optimizer = torch.optim.SGD(original.net.parameters(), lr=0.1, momentum=0.9)
    learn(original, original.own.optimizer)
    named = {"net": original.net}
    assert restored(source_of(original, **named).capture(), twin, net=twin.net) == []
    for trainer in (original, twin):
        learn(trainer, trainer.own.optimizer, 3)
    assert torch.equal(original.net.weight, twin.net.weight)


Library = type("Library", (Trainer,), {"__module__": "torch.fake"})


def test_of_a_librarys_own_class_only_an_optimizer_is_missed_that_has_gathered_something() -> None:
    def own(net: nn.Module) -> dict[str, Any]:
        return {"rng": np.random.default_rng(1), "target": nn.Linear(2, 2), "optimizer": adam(net)}

    trainer = Library(1, own, nothing)
    assert beside(source_of(trainer).capture()) == []
    learn(trainer, trainer.own["optimizer"])
    assert beside(source_of(trainer).capture()) == [".own.optimizer"]
    told = Library(1, own, lambda own: {"optimizer": own["optimizer"].state_dict()})
    learn(told, told.own["optimizer"])
    assert beside(source_of(told).capture()) == []


def test_torchs_own_objects_stay_as_they_are() -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    assert beside(source_of(scaler).capture()) == []
