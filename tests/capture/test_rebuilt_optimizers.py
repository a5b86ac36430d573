"""Optimizers that a run has built anew: for other parameters, in other groups, of another class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from unbroken.capture.torch import REMADE
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.walk import capture

from .test_torch import POLICY, Holder, Travel, parameters_equal

REPLACEABLE = POLICY.merged(REMADE)


class Phases:
    """A body and a head, and what optimizes them: first met before the networks, or after them."""

    def __init__(self, seed: int, first: bool) -> None:
        torch.manual_seed(seed)
        self.mine = "a_optimizer" if first else "optimizer"
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)  # of one shape: numbers in a list cannot tell
        self.optimize(torch.optim.Adam(self.head.parameters(), lr=0.1))

    def optimize(self, optimizer: torch.optim.Optimizer) -> None:
        setattr(self, self.mine, optimizer)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.body.parameters(), *self.head.parameters()]

    def update(self) -> None:
        optimizer = getattr(self, self.mine)
        assert self.scheduler.optimizer is optimizer
        optimizer.zero_grad()
        self.head(self.body(torch.ones(2, 3))).pow(2).mean().backward()
        optimizer.step()
        self.scheduler.step()


def in_groups(it: Phases) -> list[dict[str, Any]]:
    return [{"params": list(it.body.parameters()), "lr": 0.3}, {"params": list(it.head.parameters())}]


LATER: dict[str, Callable[[Phases], torch.optim.Optimizer]] = {
    "more": lambda it: torch.optim.Adam(it.parameters(), lr=0.02),
    "as many others": lambda it: torch.optim.Adam(it.body.parameters(), lr=0.02),
    "fewer": lambda it: torch.optim.Adam([it.head.bias], lr=0.02),
    "another order": lambda it: torch.optim.Adam(it.parameters()[::-1], lr=0.02),
    "more groups": lambda it: torch.optim.Adam(in_groups(it), lr=0.02),
    "another class": lambda it: torch.optim.SGD(it.parameters(), lr=0.02, momentum=0.9),
    "another class and more groups": lambda it: torch.optim.RMSprop(in_groups(it), lr=0.02),
}


@pytest.mark.parametrize("change", LATER)
@pytest.mark.parametrize("first", [True, False], ids=["met first", "met last"])
@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("back", [False, True], ids=["after the change", "back before it"])
@pytest.mark.filterwarnings("error")
def test_an_optimizer_that_was_rebuilt_in_the_run_comes_back(
    change: str, first: bool, updates: int, back: bool, travel: Travel
) -> None:
    original, twin = Phases(1, first), Phases(2, first)
    original.update()
    changed = twin if back else original
    changed.optimize(LATER[change](changed))
    for _ in range(updates):
        original.update()
    own = twin.parameters()
    saved = travel(capture({"it": original}, REPLACEABLE))
    graft = plan(saved, {"it": twin}, REPLACEABLE)
    assert graft.errors == []
    graft.apply()
    assert compare(saved, capture({"it": twin}, REPLACEABLE)) == []
    assert all(a is b for a, b in zip(twin.parameters(), own, strict=True))
    for _ in range(3):
        original.update()
        twin.update()
    assert compare(capture({"it": original}, REPLACEABLE), capture({"it": twin}, REPLACEABLE)) == []


def test_an_optimizer_that_the_program_has_not_built_yet_is_made_whole(travel: Travel) -> None:
    def holder(seed: int) -> Any:
        torch.manual_seed(seed)
        return Holder(net=nn.Linear(2, 2), optimizers={}, scheduler=None)

    original, twin = holder(1), holder(2)
    original.optimizers["late"] = torch.optim.AdamW(original.net.parameters(), lr=0.1)
    original.scheduler = torch.optim.lr_scheduler.StepLR(original.optimizers["late"], 2)
    plan(travel(capture({"it": original}, REPLACEABLE)), {"it": twin}, REPLACEABLE).apply()
    for it in (original, twin):
        hooked: list[int] = []
        it.optimizers["late"].register_step_post_hook(lambda *_, hooked=hooked: hooked.append(1))
        for _ in range(3):
            it.net(torch.ones(1, 2)).sum().backward()
            it.optimizers["late"].step()
            it.scheduler.step()
        assert hooked == [1, 1, 1]
    assert parameters_equal(original.net, twin.net)
    assert original.scheduler.get_last_lr() == twin.scheduler.get_last_lr()


@pytest.mark.parametrize("more", [True, False], ids=["more", "fewer"])
def test_parameters_that_only_an_optimizer_has_must_be_as_many_as_were_saved(more: bool) -> None:
    def holder(parts: int) -> Holder:
        net = nn.Linear(2, 2)
        strays = [p for _ in range(parts) for p in nn.Linear(2, 2).parameters()]
        return Holder(net=net, optimizer=torch.optim.Adam([*net.parameters(), *strays]))

    saved, twin = capture({"it": holder(1 + more)}, REPLACEABLE), holder(2 - more)
    before = capture({"it": twin}, REPLACEABLE)
    errors = plan(saved, {"it": twin}, REPLACEABLE).errors
    assert [d.place for d in errors] == ["it/optimizer/param_groups/0/params"]
    numbers = (6, 4, 4, 2) if more else (4, 6, 2, 4)
    assert errors[0].detail == (
        "{} were saved and the program has {}, of which {} and {} belong to nothing that is tracked; track what"
        " they belong to.".format(*numbers)
    )
    assert compare(before, capture({"it": twin}, REPLACEABLE)) == []


def test_where_nobody_rebuilds_optimizers_another_number_is_an_error() -> None:
    original, twin = Phases(1, False), Phases(2, False)
    original.optimize(LATER["more"](original))
    errors = plan(capture({"it": original}, POLICY), {"it": twin}, POLICY).errors
    assert [str(d) for d in errors] == [
        "it/optimizer/param_groups/0/params: 4 objects were saved, the program has 2."
    ]
