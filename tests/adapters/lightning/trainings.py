"""Small trainings for the tests of the adapter."""

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium
import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler


class Ring:
    """The newest transitions."""

    __unbroken_ring__ = None

    def __init__(self, rows: int) -> None:
        self.obs = np.zeros((rows, 4), np.float32)
        self.following = np.zeros((rows, 4), np.float32)
        self.rest = np.zeros((rows, 3), np.float32)
        self.position, self.used = 0, 0

    def __len__(self) -> int:
        return self.used

    def add(self, obs: Any, following: Any, action: int, reward: float, *, done: bool) -> None:
        row = self.position
        self.obs[row], self.following[row], self.rest[row] = obs, following, (action, reward, done)
        self.position = (row + 1) % len(self.obs)
        self.used = max(self.used, row + 1)


class Experience(IterableDataset[tuple[Tensor, ...]]):
    """Collects some steps, then yields one batch, or its samples one after the other."""

    def __init__(self, module: DqnModule, *, single: bool) -> None:
        self.module = module
        self.single = single

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        module = self.module
        while True:
            for _ in range(8):
                module.play()
            rows = module.rng.integers(0, len(module.buffer), 32)
            buffer = module.buffer
            columns = (buffer.obs[rows], buffer.following[rows], buffer.rest[rows])
            if self.single:
                for row in zip(*columns, strict=True):
                    yield tuple(map(torch.as_tensor, row))
            else:
                yield tuple(map(torch.as_tensor, columns))


class DqnModule(lightning.LightningModule):
    """DQN with everything in the module, collected while data is fetched."""

    def __init__(self, *, manual: bool = False, single: bool = False, lr: float = 1e-3) -> None:
        super().__init__()
        self.single = single
        self.automatic_optimization = not manual
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
        self.target = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
        self.target.load_state_dict(self.net.state_dict())
        self.env = gymnasium.make("CartPole-v1")
        self.buffer = Ring(500)
        self.rng = np.random.default_rng(3)
        self.epsilon = 1.0
        self.returns: deque[float] = deque(maxlen=10)
        self.episode_return = 0.0
        self.obs, _ = self.env.reset(seed=5)

    def play(self) -> None:
        if random.random() < self.epsilon:
            action = int(self.rng.integers(2))
        else:
            with torch.no_grad():
                action = int(self.net(torch.as_tensor(self.obs)).argmax())
        following, reward, terminated, truncated, _ = self.env.step(action)
        self.buffer.add(self.obs, following, action, float(reward), done=terminated)
        self.obs = following
        self.episode_return += float(reward)
        if terminated or truncated:
            self.returns.append(self.episode_return)
            self.episode_return = 0.0
            self.obs, _ = self.env.reset()

    def loss(self, batch: Any) -> Tensor:
        obs, following, rest = batch
        with torch.no_grad():
            goal = rest[:, 1] + 0.99 * self.target(following).max(1).values * (1 - rest[:, 2])
        chosen = self.net(obs).gather(1, rest[:, :1].long()).squeeze(1)
        return functional.smooth_l1_loss(chosen, goal)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=32)
        if self.automatic_optimization:
            return loss
        optimizer: Any = self.optimizers()
        self.manual_backward(loss / 3)
        if (batch_idx + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # After every callback: a checkpoint that is taken in a callback's hook of this name lacks it.
        self.epsilon = max(0.05, self.epsilon * 0.95)
        if batch_idx % 10 == 9:
            self.target.load_state_dict(self.net.state_dict())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.net.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=300)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def train_dataloader(self) -> Any:
        return DataLoader(Experience(self, single=self.single), batch_size=32 if self.single else None)


class Regression(lightning.LightningModule):
    """A net on a fixed set, shuffled; remembers which samples it saw, and what was called when."""

    in_step = False
    """Whether what is logged is the mean over all ranks."""

    def __init__(
        self, *, losses: tuple[float, ...] = (), workers: int = 0, monitor: str = "val_loss"
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.seen: list[tuple[int, int, list[int]]] = []
        self.validated: list[tuple[int, int]] = []
        self.losses = losses
        self.workers = workers
        self.monitor = monitor

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        (x,) = batch
        self.seen.append((self.current_epoch, batch_idx, x.flatten().int().tolist()))
        loss = functional.mse_loss(self.net(x / 12), x / 12)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=self.in_step)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        (x,) = batch
        if not self.trainer.sanity_checking and batch_idx == 0:
            self.validated.append((self.current_epoch, self.trainer.global_step))
        value = functional.mse_loss(self.net(x / 12), x / 12)
        if self.losses:
            value = torch.tensor(self.losses[min(self.current_epoch, len(self.losses) - 1)])
        self.log("val_loss", value, sync_dist=self.in_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": self.monitor}}

    def train_dataloader(self) -> Any:
        data = TensorDataset(torch.arange(12.0).reshape(12, 1))
        return DataLoader(data, batch_size=2, shuffle=True, num_workers=self.workers)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.arange(4.0).reshape(4, 1)), batch_size=2)


class Parallel(Regression):
    """Data-parallel: a part of the data for each rank, and an environment, a buffer and generators of its own."""

    in_step = True

    def __init__(self, rank: int, *, batch_norm: bool = False, own_sampler: bool = False) -> None:
        super().__init__()
        if batch_norm:
            self.net.append(nn.BatchNorm1d(1))
        self.own_sampler = own_sampler
        self.policy = nn.Linear(4, 1)
        self.buffer = Ring(50)
        self.rng = np.random.default_rng(rank)
        self.env = gymnasium.make("CartPole-v1")
        self.obs, _ = self.env.reset(seed=rank)
        torch.rand(3 * rank)  # dropout is each rank's own, too

    def play(self) -> None:
        with torch.no_grad():
            likely = torch.sigmoid(self.policy(torch.as_tensor(self.obs))).item()
        action = int(self.rng.random() < likely)
        following, reward, terminated, truncated, _ = self.env.step(action)
        self.buffer.add(self.obs, following, action, float(reward), done=terminated)
        self.obs = self.env.reset()[0] if terminated or truncated else following

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        for _ in range(3):
            self.play()
        loss = super().training_step(batch, batch_idx)
        rows = self.rng.integers(0, len(self.buffer), 8)
        values = self.policy(torch.as_tensor(self.buffer.obs[rows])).squeeze(1)
        return loss + functional.mse_loss(
            values, torch.as_tensor(self.buffer.rest[rows, 1]) * random.random()
        )

    def configure_optimizers(self) -> Any:
        found = super().configure_optimizers()
        found["optimizer"].add_param_group({"params": self.policy.parameters()})
        return found

    def train_dataloader(self) -> Any:
        data = TensorDataset(torch.arange(24.0).reshape(24, 1))
        if self.own_sampler:
            return DataLoader(data, batch_size=2, sampler=WeightedRandomSampler([1.0] * 24, 24))
        return DataLoader(data, batch_size=2, shuffle=True)


class Countdown(Iterator[int]):
    """An iterator of one's own, in Python."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left


class Numbers(IterableDataset[Tensor]):
    """The numbers from 0 to 15, in one of the ways in which people write streams."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Tensor]:
        for number in getattr(self, self.kind)():
            yield torch.full((1, 1), float(number))

    def counted(self) -> Iterator[int]:
        for _, x in enumerate(range(16)):
            yield x

    def paired(self) -> Iterator[int]:
        for x, _ in zip(range(16), "abcdefghijklmnop", strict=True):
            yield x

    def read(self) -> Iterator[int]:
        with open(__file__) as file:  # 16 lines of it, which are as good as any
            for line in itertools.islice(file, 16):
                yield len(line)

    def own(self) -> Countdown:
        return Countdown(16)


class Streamed(Regression):
    """Trains on a stream; for two epochs, so that one is begun anew."""

    def __init__(self, kind: str) -> None:
        super().__init__(monitor="loss")
        self.kind = kind

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step((batch,), batch_idx)

    def train_dataloader(self) -> Any:
        return DataLoader(Numbers(self.kind), batch_size=None)


Training = tuple[lightning.LightningModule, dict[str, Any], list[Callback]]


def seed() -> None:
    lightning.seed_everything(1, verbose=False)


def dqn(**options: Any) -> Training:
    seed()
    return DqnModule(**options), {}, []


def streamed(*, kind: str) -> Training:
    seed()
    return Streamed(kind), {"limit_val_batches": 0}, []


def regression(**options: Any) -> Training:
    seed()
    return Regression(**options), {}, []


def rank_of_process() -> int:
    """Return what a launcher has said, before there is a trainer."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def parallel(*, directory: str, **options: Any) -> Training:
    seed()
    best = ModelCheckpoint(directory, filename="{epoch}", monitor="val_loss", save_top_k=-1)
    return Parallel(rank_of_process(), **options), {"enable_checkpointing": True}, [best]


def stopping(*, losses: tuple[float, ...]) -> Training:
    seed()
    return Regression(losses=losses), {}, [EarlyStopping("val_loss", patience=3)]


def top_three(*, losses: tuple[float, ...], directory: str) -> Training:
    seed()
    best = ModelCheckpoint(directory, filename="{epoch}", monitor="val_loss", save_top_k=3)
    return Regression(losses=losses), {"enable_checkpointing": True}, [best]
