"""Scripts whose optimizers, temperatures, targets and schedules others have lost: kinds B and C of the catalogue."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

import unbroken

from .starts import Training


class Net(Training):
    """A network and an update by data that are fixed for each step."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.net = nn.Linear(3, 2)
        run.track(policy=self.net)

    def loss(self, step: int) -> torch.Tensor:
        seen = torch.tensor([[float(step), step % 3, 1.0]])
        error: torch.Tensor = self.net(seen) - torch.tensor([[1.0, -1.0]])
        return error.pow(2).mean()

    def update(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


class OwnedByAHook(Net):
    """B6: the optimizer belongs to a hook of a trainer, and the trainer's own state_dict says nothing of it."""

    class Hook:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    class Trainer:
        def __init__(self, net: nn.Module) -> None:
            self.hook = OwnedByAHook.Hook(torch.optim.Adam(net.parameters(), lr=0.01))

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Take nothing."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.trainer = self.Trainer(self.net)
        run.track(trainer=self.trainer)

    def step(self, step: int) -> None:
        self.update(self.trainer.hook.optimizer, self.loss(step))

    def chill(self) -> None:
        self.trainer.hook.optimizer.state.clear()


class CachedTemperature(Net):
    """B8: the temperature is kept as a number beside the logarithm that is learned, and renewed now and then."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.Adam([*self.net.parameters(), self.log_alpha], lr=0.05)
        self.temperature = {"alpha": 1.0}
        run.track(log_alpha=self.log_alpha, optimizer=self.optimizer, temperature=self.temperature)

    def step(self, step: int) -> None:
        if step % 4 == 3:
            self.temperature["alpha"] = self.log_alpha.exp().item()
        self.update(self.optimizer, self.loss(step) * self.temperature["alpha"] + self.log_alpha.sum())

    def chill(self) -> None:
        self.temperature["alpha"] = 1.0


class AverageReward(Net):
    """B13: the estimate of the average reward goes on."""

    class Estimate:
        def __init__(self) -> None:
            self.average = 0.0

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.estimate = self.Estimate()
        run.track(optimizer=self.optimizer, estimate=self.estimate)

    def step(self, step: int) -> None:
        reward = random.random()
        self.estimate.average += 0.1 * (reward - self.estimate.average)
        self.update(self.optimizer, self.loss(step) * (reward - self.estimate.average))

    def chill(self) -> None:
        self.estimate.average = 0.0


class TwoPhases(Net):
    """B14: first the value head alone is trained; then the optimizer is built anew for everything, and a scheduler
    with it. Killed on either side of the change."""

    steps = 16
    every = 3
    kills = (4, 11, 14)
    CHANGE = 6

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.value = nn.Linear(3, 1)
        run.track(value=self.value)
        self._optimize(list(self.value.parameters()), 0.1)

    def _optimize(self, parameters: list[nn.Parameter], rate: float) -> None:
        optimizer = torch.optim.Adam(parameters, lr=rate)
        self.run.vars.optimizer = optimizer
        self.run.vars.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(self, step: int) -> None:
        if step == self.CHANGE:
            self._optimize([*self.value.parameters(), *self.net.parameters()], 0.02)
        held = self.run.vars
        assert held.scheduler.optimizer is held.optimizer
        self.update(held.optimizer, self.loss(step) + self.value(torch.ones(1, 3)).pow(2).sum())
        held.scheduler.step()

    def chill(self) -> None:
        self.run.vars.optimizer.state.clear()


class Masters(Training):
    """B10: the weights proper are kept in 32 bits beside a network of 16, and are theirs after ten starts, half of which
    have trained nothing."""

    steps = 34
    kills = (6, 11, 10, 16, 15, 21, 20, 26, 25, 31)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.net = nn.Linear(3, 2).bfloat16()
        self.masters = [p.detach().float().requires_grad_() for p in self.net.parameters()]
        self.optimizer = torch.optim.SGD(self.masters, lr=1e-3)
        run.track(policy=self.net, masters=self.masters, optimizer=self.optimizer)

    def step(self, step: int) -> None:
        self.net.zero_grad()
        seen = torch.tensor([[float(step % 5), step % 3, 1.0]]).bfloat16()
        torch.autograd.backward(self.net(seen).float().pow(2).mean())
        for master, p in zip(self.masters, self.net.parameters(), strict=True):
            assert p.grad is not None
            master.grad = p.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, p in zip(self.masters, self.net.parameters(), strict=True):
                p.copy_(master)

    def chill(self) -> None:
        """Make them anew from what is left of them in the network."""
        with torch.no_grad():
            for master, p in zip(self.masters, self.net.parameters(), strict=True):
                master.copy_(p)


class OneCycle(Net):
    """C2: the rate of a cycle, and the momentum that it cycles."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=20)
        run.track(optimizer=self.optimizer, scheduler=self.scheduler)
        run.vars.curve = []

    def step(self, step: int) -> None:
        self.update(self.optimizer, self.loss(step))
        self.scheduler.step()
        group = self.optimizer.param_groups[0]
        self.run.vars.curve = [*self.run.vars.curve, (group["lr"], group["momentum"])]

    def chill(self) -> None:
        self.scheduler.last_epoch = 0

    def check(self) -> None:
        if len({momentum for _, momentum in self.run.vars.curve}) < 5:
            raise AssertionError("this cycle has no momentum")


class TargetNetwork(Net):
    """B2: the target is neither new nor a copy of what is trained."""

    kills = (8, 13)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.target = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.05)
        run.track(target=self.target, optimizer=self.optimizer)

    def step(self, step: int) -> None:
        if step == 0:
            self.target.load_state_dict(self.net.state_dict())
        self.update(self.optimizer, self.loss(step) + (self.net.weight - self.target.weight).pow(2).sum())
        with torch.no_grad():
            self.target.weight.lerp_(self.net.weight, 0.1)

    def chill(self) -> None:
        self.target.load_state_dict(self.net.state_dict())


class SelfPlay(Net):
    """C11: rating, pool of opponents and the opponent that is drawn next."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.league: dict[str, Any] = {"rating": 1200.0, "pool": [], "drawn": []}
        run.track(optimizer=self.optimizer, league=self.league)

    def step(self, step: int) -> None:
        league = self.league
        if step % 2 == 0:
            league["pool"].append({name: part.clone() for name, part in self.net.state_dict().items()})
        opponent = np.random.randint(len(league["pool"]))  # noqa: NPY002
        league["drawn"].append(int(opponent))
        strength = league["pool"][opponent]["weight"].sum().item()
        league["rating"] += 16 * (float(self.net.weight.sum().item() > strength) - 0.5)
        self.update(self.optimizer, self.loss(step) + strength * self.net.bias.sum())

    def chill(self) -> None:
        self.league["pool"] = self.league["pool"][-1:]
        self.league["rating"] = 1200.0


class Dropout(Net):
    """D9, D3: dropout and noise are the same, in the middle of an epoch and at its end; the loader that is built after
    everything else has drawn from the global generator by then."""

    every = 4  # an epoch has 6 batches: at 8 the middle of one, at 12 the end
    kills = (9, 13)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.order: list[int] = []
        run.track(optimizer=self.optimizer, order=self.order)
        data = torch.utils.data.TensorDataset(torch.arange(12).float())
        next(iter(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)))

    def step(self, step: int) -> None:
        if step % 6 == 0:
            self.order[:] = torch.randperm(12).tolist()
        batch = self.order[2 * (step % 6) : 2 * (step % 6) + 2]
        seen = torch.tensor([[number, 1.0, 2.0] for number in batch]) + 0.1 * torch.randn(2, 3)
        kept = torch.nn.functional.dropout(self.net(seen), 0.5)
        self.update(self.optimizer, kept.pow(2).mean())

    def chill(self) -> None:
        torch.manual_seed(1)
