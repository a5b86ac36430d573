"""One rank of a training over a `DataLoader` whose order is a part of the run. The same command starts it and starts it again.

`python sampled_script.py ROOT '{"total": 24, …}'`, see `Options`; a launcher gives RANK and WORLD_SIZE. It tells where it is
and which samples it got in lines of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

import unbroken
from unbroken.distributed import World, world


@dataclass
class Options:
    total: int
    every: int
    samples: int = 64
    batch: int = 4
    hold: int = -1
    """Stand still at the top of this step as long as there is a file `ROOT.hold`."""
    cold: str = ""
    """What is put back to how this process began: `order`, `optimizer` or `policy`."""


class Order(Sampler[list[int]]):
    """The order of all samples, the same on every rank, and how much of it all ranks have had together.

    Neither its rank nor their number is state: each takes its part of what comes next.
    """

    def __init__(self, samples: int, me: World, *, batch: int) -> None:
        self.samples, self.me, self.batch = samples, me, batch
        self.seed, self.epoch, self.consumed = 7, 0, 0
        self.taken: list[int] = []

    def __iter__(self) -> Iterator[list[int]]:
        """Yield what is left of the epoch."""
        shuffled = torch.randperm(
            self.samples, generator=torch.Generator().manual_seed(self.seed + self.epoch)
        )
        while self.consumed < self.samples:
            self.taken = shuffled[self.consumed : self.consumed + self.batch * self.me.size].tolist()
            self.consumed += len(self.taken)
            yield self.taken[self.batch * self.me.rank :][: self.batch]
        self.epoch, self.consumed = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seed, self.epoch, self.consumed = state["seed"], state["epoch"], state["consumed"]


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def batches(loader: DataLoader[Any]) -> Iterator[list[int]]:
    while True:
        for (batch,) in loader:
            yield batch.long().tolist()


def main() -> None:
    root, options = Path(sys.argv[1]), Options(**json.loads(sys.argv[2]))
    me = world(
        replicated=["policy_weights", "optimizer_states", "training_state"],
        sync_timeout=300,
        start_timeout=300,
    )
    torch.manual_seed(1)
    policy = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01, momentum=0.9)
    order = Order(options.samples, me, batch=options.batch)
    data = TensorDataset(torch.arange(float(options.samples)))
    # A generator of its own: each pass draws a seed for workers, also one that is begun again in its middle.
    loader = DataLoader(data, batch_sampler=order, generator=torch.Generator())
    run = unbroken.Run(root, every=options.every, world=me, quiet=True)
    run.track(policy=policy, optimizer=optimizer, order=order)
    fresh = {name: value.clone() for name, value in policy.state_dict().items()}
    passing: Iterator[list[int]] = iter(())
    for step in run.steps(options.total):
        if run.report is not None and step == run.report.step:
            say(start=step, changes=list(run.report.changes))
            if options.cold == "order":
                order.epoch = order.consumed = 0
            elif options.cold == "optimizer":
                optimizer.state.clear()
            elif options.cold == "policy":
                policy.load_state_dict(fresh)
            passing = batches(loader)
        run.wait()  # steps of no length leave out saves that fall into the one before
        say(at=step)
        while step == options.hold and Path(f"{root}.hold").exists():
            time.sleep(0.01)
        say(step=step, ids=next(passing))
        # What a sum of gradients over all ranks comes to: a step on all that was taken.
        inputs = torch.tensor(order.taken).reshape(-1, 1) / options.samples
        loss = (policy(inputs) - 2 * inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    momentum = [optimizer.state[p]["momentum_buffer"].tolist() for p in policy.parameters()]
    say(end=[p.tolist() for p in policy.parameters()], momentum=momentum, order=order.state_dict())


if __name__ == "__main__":
    main()
