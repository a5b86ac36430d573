"""Scripts whose memory of experience others have lost: kinds A of the catalogue."""

from __future__ import annotations

import importlib
import multiprocessing
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import unbroken

from .starts import Training


class Learner(Training):
    """A network that learns from rows which a buffer gives."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.net = nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        run.track(policy=self.net, optimizer=self.optimizer)

    def learn(self, rows: Any) -> None:
        batch = torch.as_tensor(np.asarray(rows, np.float32)).reshape(-1, 3)
        self.optimizer.zero_grad()
        self.net(batch).pow(2).mean().backward()
        self.optimizer.step()


def row(step: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([step, step % 3, 1 / (step + 1)], np.float32)


class Prefetching(Learner):
    """A6: batches that were drawn ahead of their use are used after a resume, each id once and in its order."""

    steps = 15
    kills = (8, 12)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.order: list[int] = []
        self.ahead: deque[list[int]] = deque()
        run.track(order=self.order, ahead=self.ahead)
        run.vars.used = []

    def step(self, step: int) -> None:
        while len(self.ahead) < 3:
            if not self.order:
                self.order.extend(int(number) for number in np.random.permutation(60))  # noqa: NPY002
            self.ahead.append([self.order.pop() for _ in range(4)])
        batch = self.ahead.popleft()
        self.run.vars.used = [*self.run.vars.used, *batch]
        self.learn([row(number) for number in batch])

    def chill(self) -> None:
        self.cold = True
        self.ahead.clear()

    def check(self) -> None:
        if len(set(self.run.vars.used)) < 60 and not self.cold:
            raise AssertionError(f"of 60 ids {60 - len(set(self.run.vars.used))} were not used")


class TorchRLPrefetch(Learner):
    """A6 with TorchRL's own buffer, sampler and prefetching thread.

    One thread: where several draw from one sampler, which of them comes first is left to chance, and TorchRL puts the
    batches into another order in each run, whether it is killed or not.
    """

    prefetch = 1
    every = 3
    kills = (4,)
    steps = 16

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        data: Any = importlib.import_module("torchrl.data")
        self.buffer = data.ReplayBuffer(
            storage=data.LazyTensorStorage(64),
            sampler=data.SamplerWithoutReplacement(),
            batch_size=4,
            prefetch=self.prefetch,
        )
        self.buffer.extend(torch.arange(64).float())
        run.track(buffer=self.buffer)
        run.vars.used = []

    def step(self, step: int) -> None:
        self.run.vars.used = [*self.run.vars.used, *(int(number) for number in self.buffer.sample())]

    def chill(self) -> None:
        self.cold = True
        self.buffer.sample()

    def check(self) -> None:
        if not self.cold:
            assert sorted(self.run.vars.used) == list(range(64))


class TorchRLPrefetchOfSeveral(TorchRLPrefetch):
    """A6 with three batches ahead: their order is left to chance, but each row is used once."""

    prefetch = 3

    def chill(self) -> None:
        self.buffer.sample()


class TorchRLRows(Learner):
    """TorchRL's buffer of several fields, which makes its memory when the first row comes."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        data: Any = importlib.import_module("torchrl.data")
        self.fields: Any = importlib.import_module("tensordict").TensorDict
        self.buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(10), batch_size=4)
        run.track(buffer=self.buffer)

    def step(self, step: int) -> None:
        row_of = {"row": torch.as_tensor(row(step)), "next": {"row": torch.rand(3)}}
        self.buffer.add(self.fields(row_of, batch_size=[], device="cpu"))
        drawn = self.buffer.sample()
        assert drawn.device == torch.device("cpu")
        self.learn((drawn["row"] + drawn["next", "row"]).tolist())

    def chill(self) -> None:
        self.buffer.empty()


class OwnBuffer:
    """Rows in an array, as in many a script."""

    def __init__(self, size: int = 64) -> None:
        self.rows = np.zeros((size, 3), np.float32)
        self.pos = 0

    def add(self, one: Any) -> None:
        self.rows[self.pos % len(self.rows)] = one
        self.pos += 1

    def reset(self) -> None:
        self.rows[:] = 0
        self.pos = 0

    def sample(self) -> Any:
        return self.rows[np.random.randint(0, min(self.pos, len(self.rows)), size=4)]  # noqa: NPY002


class Collector:
    """Empties the buffer that it is given."""

    def __init__(self, buffer: OwnBuffer) -> None:
        buffer.reset()
        self.buffer = buffer


class BuiltLater(Learner):
    """A8, A11: an object built after the buffer is tracked empties it; rows are there once after each resume."""

    kills = (7, 12, 13)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        buffer = OwnBuffer()
        run.track(buffer=buffer)
        self.collector = Collector(buffer)

    def step(self, step: int) -> None:
        self.collector.buffer.add(row(step))
        self.learn(self.collector.buffer.sample())

    def chill(self) -> None:
        self.collector.buffer.reset()
        self.collector.buffer.add(row(0))

    def check(self) -> None:
        if not np.array_equal(self.collector.buffer.rows[0], row(0)):
            raise AssertionError("the first row is gone")


class Memmapped(Learner):
    """A10: rows in a file come back by their contents at the save, however the file went on."""

    kills = (8, 13)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.buffer = OwnBuffer()
        file = Path(tempfile.mkdtemp(prefix="memmap-")) / "rows"
        self.buffer.rows = np.memmap(file, np.float32, "w+", shape=(64, 3))
        file.unlink()
        run.track(buffer=self.buffer)

    def step(self, step: int) -> None:
        self.buffer.add(row(step))
        self.learn(self.buffer.sample())

    def chill(self) -> None:
        self.buffer.rows[:] = 0

    def check(self) -> None:
        assert isinstance(self.buffer.rows, np.memmap), "it is still the file that the program has opened"


class SharedWithActors(Learner):
    """A counter of steps and a curriculum that actors in other processes read and raise."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        forking = multiprocessing.get_context("fork")
        self.counter = forking.Value("q", 0)
        self.difficulty: Any = forking.Array("d", [1.0, 2.0, 3.0])
        run.track(shared={"counter": self.counter, "difficulty": self.difficulty})

    def act(self) -> None:
        with self.counter.get_lock():
            self.counter.value += 1
        self.difficulty[self.counter.value % 3] *= 1.5

    def step(self, step: int) -> None:
        actor = multiprocessing.get_context("fork").Process(target=self.act)
        actor.start()
        actor.join()
        assert actor.exitcode == 0
        self.learn(self.difficulty[:])

    def chill(self) -> None:
        self.counter.value = 0


class Governed(Learner):
    """A15: as many updates at each step as without a kill, though a governor counts what it owes."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.buffer = OwnBuffer()
        self.governor = {"owed": 0.0, "warm": 4, "updates": []}
        run.track(buffer=self.buffer, governor=self.governor)

    def step(self, step: int) -> None:
        self.buffer.add(row(step))
        governor: Any = self.governor
        updates = 0
        if self.buffer.pos >= governor["warm"]:
            governor["owed"] += 0.75
            while governor["owed"] >= 1:
                governor["owed"] -= 1
                updates += 1
                self.learn(self.buffer.sample())
        governor["updates"].append(updates)

    def chill(self) -> None:
        self.governor["owed"] = 0.0


class Episodic(Learner):
    """A16: finished episodes, and the open one, are the same."""

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.episodes: list[list[Any]] = []
        self.current: list[Any] = []
        self.memory: dict[str, list[Any]] = {"episodes": self.episodes, "open": self.current}
        run.track(memory=self.memory)

    def step(self, step: int) -> None:
        self.memory["open"].append(row(step))
        if len(self.memory["open"]) == 3:
            self.memory["episodes"].append(self.memory["open"])
            self.memory["open"] = []
        if self.memory["episodes"]:
            chosen = self.memory["episodes"][np.random.randint(len(self.memory["episodes"]))]  # noqa: NPY002
            self.learn(np.stack(chosen))

    def chill(self) -> None:
        self.memory["open"] = []
