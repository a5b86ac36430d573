"""G11: PPO with a value head, an optimizer of its own for it, and a reference that moves: nothing of it is left behind.

Undisturbed, resumed, and resumed with one part left cold: only the second may end as the first.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

import unbroken

STEPS, SAVED, LEFT = 12, 5, 7
SYNCHRONIZED = 4
"""After so many steps the reference becomes what the policy is."""


class TwoHeaded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 8)
        self.actor = nn.Linear(8, 4)
        self.critic = nn.Linear(8, 1)

    def forward(self, seen: Tensor) -> tuple[Categorical, Tensor]:
        features = torch.tanh(self.body(seen))
        return Categorical(logits=self.actor(features)), self.critic(features.detach()).squeeze(-1)


class Ppo:
    """As a process that has just started."""

    def __init__(self, root: Path) -> None:
        torch.manual_seed(0)
        self.policy = TwoHeaded()
        self.fresh = copy.deepcopy(self.policy)
        self.reference = copy.deepcopy(self.policy).requires_grad_(requires_grad=False)
        actor = [*self.policy.body.parameters(), *self.policy.actor.parameters()]
        self.optimizer = torch.optim.Adam(actor, lr=0.01)
        self.value_optimizer = torch.optim.Adam(self.policy.critic.parameters(), lr=0.02)
        self.run = unbroken.Run(root, every=SAVED, quiet=True)
        self.run.track(
            policy=self.policy,
            reference=self.reference,
            optimizer=self.optimizer,
            value_optimizer=self.value_optimizer,
        )
        self.run.vars.penalty = 0.1
        self.seen: list[int] = []
        self.run.scratch(self.fresh, self.seen)

    def go(self, *, until: int = STEPS, cold: str = "") -> Ppo:
        for step in self.run.steps(STEPS):
            if step == until:
                self.run.close()
                break
            if cold and not self.seen:
                self.chill(cold)
            self.seen.append(step)
            self.update()
            if step % SYNCHRONIZED == SYNCHRONIZED - 1:
                self.reference.load_state_dict(self.policy.state_dict())
        return self

    def update(self) -> None:
        """Collect with the policy as it is, then take two passes over what was collected."""
        with torch.no_grad():
            observed = torch.randn(16, 3)
            old, values = self.policy(observed)
            actions = old.sample()
            rewards = (actions == observed.argmax(-1)).float()
            before, advantages = old.log_prob(actions), rewards - values
            wanted, _ = self.reference(observed)
        distance = torch.zeros(())
        for _ in range(2):
            now, values = self.policy(observed)
            ratio = (now.log_prob(actions) - before).exp()
            gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            distance = kl_divergence(now, wanted).mean()
            losses = (-gain.mean() + self.run.vars.penalty * distance, (values - rewards).square().mean())
            for loss, optimizer in zip(losses, (self.optimizer, self.value_optimizer), strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.run.vars.penalty *= 1.5 if float(distance.detach()) > 1e-3 else 0.75

    def chill(self, part: str) -> None:
        """Bring a part to where a script that does not save it would have it."""
        if part == "value head":
            self.policy.critic.load_state_dict(self.fresh.critic.state_dict())
        elif part == "value optimizer":
            self.value_optimizer.state.clear()
        elif part == "optimizer":
            self.optimizer.state.clear()
        elif part == "reference":
            self.reference.load_state_dict(self.fresh.state_dict())
        elif part == "penalty":
            self.run.vars.penalty = 0.1

    def state(self) -> dict[str, Any]:
        optimizers = {"actor": self.optimizer, "critic": self.value_optimizer}
        return {
            "policy": _bytes(self.policy.state_dict()),
            "reference": _bytes(self.reference.state_dict()),
            "optimizers": {
                name: {key: _bytes(slots) for key, slots in optimizer.state_dict()["state"].items()}
                for name, optimizer in optimizers.items()
            },
            "penalty": self.run.vars.penalty,
            "draws": torch.rand(100).tolist(),
        }


def _bytes(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return Ppo(tmp_path_factory.mktemp("undisturbed") / "run").go().state()


def test_resumed_it_ends_as_if_it_had_never_stopped(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    Ppo(tmp_path / "run").go(until=LEFT)
    resumed = Ppo(tmp_path / "run").go()
    assert resumed.seen == list(range(SAVED, STEPS)), "the step goes on"
    assert resumed.state() == undisturbed


@pytest.mark.parametrize("cold", ["value head", "value optimizer", "optimizer", "reference", "penalty"])
def test_with_a_part_left_cold_it_does_not(undisturbed: dict[str, Any], tmp_path: Path, cold: str) -> None:
    Ppo(tmp_path / "run").go(until=LEFT)
    resumed = Ppo(tmp_path / "run").go(cold=cold)
    assert resumed.seen == list(range(SAVED, STEPS))
    assert resumed.state()["policy"] != undisturbed["policy"]
