"""Small hand-written trainings, one for each trap of a resumed loop. Runs many of them from one interpreter.

`python loop_traps_script.py '[{"trap": …, "root": …, "kill_at": …, "cold": …}, …]'` forks a child for each job from
a process that has only imported modules, and prints a line of JSON for each: how the child ended, and, where it came
to its end, what it had then. `kill_at`: the step at whose top it kills itself, once every save before is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from unbroken.adapters.loop import Run

TOTAL = 20
EVERY = 5
State = dict[str, Any]


class Job:
    """One training of one process."""

    def __init__(self, root: str, kill_at: int, cold: str) -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        self.run = Run(root, every=EVERY, quiet=True)
        self.kill_at = kill_at
        self.cold = cold
        """What a resumed process leaves as a script would have it that does not save it."""

    def steps(self) -> Iterator[tuple[int, str]]:
        """Yield each step, and what is to be made cold in it: something in the first after a restore, if at all."""
        cold = self.cold
        for step in self.run.steps(TOTAL):
            # Every save is on the disk before the next step, so that it is known which one comes back.
            self.run.wait()
            if step == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            assert self.run.report is not None
            yield step, cold if self.run.report.restored else ""
            cold = ""


def digest(value: Any) -> Any:
    """Return a value as JSON in which every bit and every type counts."""
    if isinstance(value, Tensor):
        raw = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype}{list(value.shape)} {hashlib.sha256(raw).hexdigest()[:16]}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
    if isinstance(value, dict):
        return {str(key): digest(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [digest(item) for item in value]
    return f"{type(value).__name__} {value!r}"


def loss_of(net: nn.Module) -> Any:
    return net(torch.randn(16, 4)).square().mean()


def update(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(net).backward()
    optimizer.step()


def late_scheduler(job: Job) -> State:
    """The scheduler is built when the optimizer has come back, and takes the rate that it finds for its own."""
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    job.run.track(policy=net, optimizer=optimizer)
    scheduler: LambdaLR | None = None
    for step, cold in job.steps():
        if cold == "initial rate":  # as if the groups had been built anew with the rate of this moment
            for group in optimizer.param_groups:
                group["initial_lr"] = group["lr"]
        if scheduler is None:
            scheduler = LambdaLR(optimizer, lambda n: 0.9**n, last_epoch=step - 1)
        update(net, optimizer)
        scheduler.step()
    assert scheduler is not None
    return {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "rate": scheduler.get_last_lr()}


def one_cycle(job: Job) -> State:
    """A scheduler that is built before the optimizer comes back, and cycles its momentum too."""
    net = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, foreach=True)
    scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=TOTAL + 1)
    job.run.track(policy=net, optimizer=optimizer, scheduler=scheduler)
    curve = job.run.vars.curve = []
    for _, cold in job.steps():
        if cold == "scheduler":
            scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=TOTAL + 1)
        group = optimizer.param_groups[0]
        job.run.vars.curve.append((group["lr"], group["betas"][0]))
        update(net, optimizer)
        scheduler.step()
    assert curve is job.run.vars.curve
    return {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "curve": curve,
        "scheduler": scheduler.state_dict()["last_epoch"],
    }


def phase_change(job: Job) -> State:
    """The value head is trained alone; then the optimizer is built anew for everything, and a scheduler with it."""
    net = nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)})
    chain = nn.Sequential(net["body"], nn.Tanh(), net["head"])
    v = job.run.vars
    v.optimizer = torch.optim.Adam(net["head"].parameters(), lr=0.05)
    v.scheduler = LambdaLR(v.optimizer, lambda n: 1 / (1 + n))
    job.run.track(policy=net)
    for step, cold in job.steps():
        if step == TOTAL // 2:
            body: dict[str, Any] = {"params": net["body"].parameters(), "lr": 0.01}
            v.optimizer = torch.optim.Adam([{"params": net["head"].parameters()}, body], lr=0.03)
            v.scheduler = LambdaLR(v.optimizer, lambda n: 1 / (1 + n))
        if cold == "moments":
            v.optimizer.state.clear()
        update(chain, v.optimizer)
        v.scheduler.step()
        assert v.scheduler.optimizer is v.optimizer
    own = {id(p) for p in net.parameters()}
    held = [id(p) for group in v.optimizer.param_groups for p in group["params"]]
    return {
        "net": net.state_dict(),
        "optimizer": v.optimizer.state_dict(),
        "rate": v.scheduler.get_last_lr(),
        "holds the parameters of the network": sorted(own) == sorted(held),
    }


def masters(job: Job) -> State:
    """The weights proper are kept in 32 bits beside a network of 16, outside its and the optimizer's state."""
    net = nn.Linear(4, 3).bfloat16()
    wide = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    optimizer = torch.optim.Adam(wide, lr=1e-3)
    job.run.track(policy=net, masters=wide, optimizer=optimizer)
    for _, cold in job.steps():
        if cold == "masters":  # made anew from what is left of them in the network
            for master, p in zip(wide, net.parameters(), strict=True):
                master.data.copy_(p.detach().float())
        net.zero_grad()
        net(torch.randn(16, 4).bfloat16()).float().square().mean().backward()
        for master, p in zip(wide, net.parameters(), strict=True):
            assert p.grad is not None
            master.grad = p.grad.float()
        optimizer.step()
        for master, p in zip(wide, net.parameters(), strict=True):
            p.data.copy_(master.detach())
    return {"net": net.state_dict(), "masters": wide, "optimizer": optimizer.state_dict()}


class Narrow(torch.optim.Optimizer):
    """An optimizer that a person wrote: weights of 32 bits, moments of 16."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p, dtype=torch.bfloat16)
                    state["square"] = torch.zeros_like(p, dtype=torch.bfloat16)
                    state["step"] = 0
                state["step"] += 1
                narrow = p.grad.to(state["mean"].dtype)
                state["mean"].mul_(first).add_(narrow, alpha=1 - first)
                state["square"].mul_(second).addcmul_(narrow, narrow, value=1 - second)
                p.sub_(group["lr"] * state["mean"].float() / (state["square"].float().sqrt() + 1e-3))


def narrow_moments(job: Job) -> State:
    """Moments of another dtype than the weights."""
    net = nn.Linear(4, 3)
    optimizer = Narrow(net.parameters(), lr=0.01)
    job.run.track(policy=net, optimizer=optimizer)
    for _, cold in job.steps():
        if cold == "dtype":  # what a loader does that casts to the dtype of the weights
            for state in optimizer.state.values():
                state.update({name: state[name].float() for name in ("mean", "square")})
        update(net, optimizer)
    return {"net": net.state_dict(), "optimizer": optimizer.state_dict()}


class Noisy:
    """Gives and takes its own state, and draws while it takes it: another's code, which nobody can change."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._drawn = 0.0

    def draw(self) -> float:
        self._drawn += float(self._rng.normal() + torch.randn(()).item())
        return self._drawn

    def state_dict(self) -> dict[str, float]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._rng.normal(size=3)
        torch.randn(3)
        random.random()
        self._drawn = state["drawn"]


def early_generators(job: Job) -> State:
    """Everything that a script builds after `track` draws, and so does what takes its state back."""
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rng = np.random.default_rng(1)
    shuffling = torch.Generator().manual_seed(1)
    job.run.track(rng=rng, shuffling=shuffling, policy=net, optimizer=optimizer)
    late = Noisy(rng)
    extra = nn.Linear(3, 2)
    job.run.track(late=late, extra=extra)
    loader = DataLoader(TensorDataset(torch.arange(8.0)), 2, shuffle=True, generator=shuffling)
    list(loader)
    seen = job.run.vars.seen = []
    for _, cold in job.steps():
        if cold == "construction":  # as it is where the generators come back before it
            _ = nn.Linear(3, 2), list(loader), rng.normal()
        update(net, optimizer)
        job.run.vars.seen.append((late.draw(), random.random(), next(iter(loader))[0].tolist()))
    return {"net": net.state_dict(), "seen": seen, "extra": extra.state_dict(), "next": float(rng.random())}


def counters(job: Job) -> State:
    """Numbers that a loop carries, and numbers that follow from others and are not computed again."""
    net = nn.Linear(4, 3)
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([*net.parameters(), log_alpha], lr=0.05)
    job.run.track(policy=net, log_alpha=log_alpha, optimizer=optimizer)
    v = job.run.vars
    v.global_step, v.owed, v.updates, v.average, v.alpha, v.rating = 0, 0.0, 0, 0.0, 1.0, 1200.0
    v.pool = []
    for step, cold in job.steps():
        if cold:
            setattr(
                v,
                cold,
                {"owed": 0.0, "average": 0.0, "alpha": 1.0, "pool": v.pool[:1]}[cold],
            )
        v.global_step += 4
        v.owed += 0.7  # updates for each step
        while v.owed >= 1.0:
            v.owed -= 1.0
            v.updates += 1
            loss = loss_of(net)
            v.average += 0.1 * (loss.item() - v.average)
            optimizer.zero_grad()
            (loss * v.alpha + log_alpha.sum() * (loss.item() - v.average)).backward()
            optimizer.step()
            if v.updates % 3 == 0:  # the number that is used is brought up to date now and then
                v.alpha = log_alpha.exp().item()
        if step % 4 == 0:
            v.pool.append(net.weight.detach().clone())
        opponent = random.choice(v.pool)
        v.rating += 10.0 * float(torch.sign(net.weight.detach().sum() - opponent.sum())) - v.rating / 500
        job.run.record(episodes=step % 2, rating=v.rating)
    return {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "numbers": {name: value for name, value in vars(v).items() if name != "pool"},
        "pool": v.pool,
        "episodes": job.run.episodes,
    }


class Jittered(Dataset[Tensor]):
    """Samples to each of which a generator of the data set adds noise."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), index + self.rng.normal() * 0.1, dtype=torch.float32)


def epochs(job: Job) -> State:
    """Each step takes the next batch of an epoch of six; saves come every five."""
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(Jittered(), batch_size=2, shuffle=True, drop_last=False)
    job.run.track(policy=net, optimizer=optimizer)
    v = job.run.vars
    v.batches, v.seen = iter(loader), []
    for _, cold in job.steps():
        if cold == "pass":  # the position comes back, but not the order
            at = v.batches._num_yielded
            v.batches = iter(loader)
            for _ in range(at):
                next(v.batches)
        batch = next(v.batches, None)
        if batch is None:
            v.batches = iter(loader)
            batch = next(v.batches)
        v.seen.append(batch[:, 0].round().int().tolist())
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    samples: Any = v.batches._dataset  # the pass's own, whatever became of what the script has built
    return {"net": net.state_dict(), "seen": v.seen, "next": float(samples.rng.random())}


TRAPS: dict[str, Callable[[Job], State]] = {
    trap.__name__: trap
    for trap in (
        late_scheduler, one_cycle, phase_change, masters, narrow_moments, early_generators, counters, epochs,
    )
}  # fmt: skip


def child(job: dict[str, Any], told: Path) -> None:
    """Run one training and write down what it had at its end."""
    made = Job(job["root"], job.get("kill_at", -1), job.get("cold", ""))
    end = TRAPS[job["trap"]](made)
    report = made.run.report
    assert report is not None
    draws = {
        "python": random.random(), "numpy": np.random.random(), "torch": torch.rand(3).tolist()  # noqa: NPY002
    }  # fmt: skip
    told.write_text(
        json.dumps({"from": report.step, "text": report.text, "end": digest({**end, "draws": draws})})
    )


def main() -> None:
    torch.set_num_threads(1)  # no threads of ours when a child is forked
    torch.optim.SGD([torch.zeros(1)])  # imports for seconds, once here and not in every child
    for job in json.loads(sys.argv[1]):
        told = Path(f"{job['root']}.{os.getpid()}.json")
        pid = os.fork()
        if not pid:
            child(job, told)
            sys.exit()
        _, status = os.waitpid(pid, 0)
        found = json.loads(told.read_text()) if told.exists() else {}
        told.unlink(missing_ok=True)
        print(json.dumps({**job, "rc": os.waitstatus_to_exitcode(status), **found}), flush=True)


if __name__ == "__main__":
    main()
