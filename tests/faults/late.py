"""Scripts that make their networks, optimizers and opponents while they train, and have nothing there at a start."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import nn

import unbroken

from .learning import AverageReward, Net


class Late(Net):
    """A network that is trained all the time, and a sum of whatever was made later."""

    kills = (8, 12)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.05)
        run.track(optimizer=self.optimizer)


class KeepsBest(Late):
    """A copy of the network as it was best."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        run.vars.best = None

    def step(self, step: int) -> None:
        if step % 3 == 2:
            self.run.vars.best = copy.deepcopy(self.net)
        pull = 0.0 if self.run.vars.best is None else self.run.vars.best.weight.sum().item()
        self.update(self.optimizer, self.loss(step) + pull * self.net.bias.sum())

    def chill(self) -> None:
        self.run.vars.best = copy.deepcopy(self.net)


class PoolOfCopies(Late):
    """Opponents are copies of the network, one is there from the start; the newest is the one that is drawn."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.league: dict[str, Any] = {"pool": [copy.deepcopy(self.net)], "opponent": None}
        run.track(league=self.league)

    def step(self, step: int) -> None:
        league = self.league
        if step % 2:
            league["pool"].append(copy.deepcopy(self.net))
        league["opponent"] = random.choice(league["pool"])
        strength = league["opponent"].weight.sum().item()
        self.update(self.optimizer, self.loss(step) + strength * self.net.bias.sum())

    def chill(self) -> None:
        del self.league["pool"][1:]

    def check(self) -> None:
        if not any(self.league["opponent"] is one for one in self.league["pool"]):
            raise AssertionError("the opponent is none of the pool")


class SecondLearner(Late):
    """A second network with its optimizer and schedule, of a class with normalization, dropout and memory."""

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2))
            self.memory = nn.GRU(4, 2)

        def forward(self, seen: torch.Tensor) -> torch.Tensor:
            return self.memory(self.body(seen))[0]  # type: ignore[no-any-return]

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        run.vars.critic = run.vars.adam = run.vars.schedule = None
        run.vars.counted = AverageReward.Estimate()  # classes of this package are the program's

    def step(self, step: int) -> None:
        held = self.run.vars
        if step == 3:
            held.critic = self.Critic()
            held.adam = torch.optim.AdamW(held.critic.parameters(), lr=0.1)
            held.schedule = torch.optim.lr_scheduler.ExponentialLR(held.adam, 0.9)
        if held.critic is not None:
            self.update(held.adam, held.critic(torch.randn(5, 3)).pow(2).mean())
            held.schedule.step()
            with torch.no_grad():
                self.net.get_parameter("bias").add_(held.critic.memory.get_parameter("weight_hh_l0").sum())
        self.update(self.optimizer, self.loss(step))

    def chill(self) -> None:
        self.run.vars.adam.state.clear()
