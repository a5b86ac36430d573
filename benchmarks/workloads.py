"""The trainings whose state is saved: networks, Adam, and a replay buffer.

What is computed does not matter here, only what changes: `train()` gives every parameter a gradient that
looks like noise, makes a step of each optimizer, lets the targets follow, and adds new rows to the buffer
through the buffer's own `add`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import nn

from benchmarks.frames import Frames
from benchmarks.records import Sizes
from benchmarks.rings import ReplayRing

Bytes = NDArray[np.uint8]
TARGET = "target"


class State(TypedDict):
    """All of a workload as state dicts, sharing memory with what is live."""

    modules: dict[str, dict[str, torch.Tensor]]
    optimizers: dict[str, dict[str, Any]]
    buffer: dict[str, torch.Tensor]
    counters: dict[str, int]


class Workload(ABC):
    """A live training."""

    def __init__(self, new_rows: int) -> None:
        self.new_rows = new_rows
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.buffer: ReplayRing | None = None
        self._build()

    @abstractmethod
    def _build(self) -> None:
        """Make networks, optimizers and an empty buffer, as a process does that has just started."""

    @abstractmethod
    def _add(self, buffer: ReplayRing) -> None:
        """Add one new row."""

    def fill(self) -> None:
        """Go to the middle of a training: the buffer full, every optimizer with its moments."""
        if self.buffer is not None:
            self._fill(self.buffer)
        self.train()

    def _fill(self, buffer: ReplayRing) -> None:
        while not buffer.full:
            self._add(buffer)

    def train(self) -> None:
        """Change all weights, and as many rows of the buffer as are new between two saves."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    # Cheaper than random numbers, and as hard to compress.
                    parameter.grad = torch.sin(parameter.detach() * 1e4)
            optimizer.step()
            optimizer.zero_grad()
        self._follow()
        if self.buffer is not None:
            for _ in range(self.new_rows):
                self._add(self.buffer)

    def reset(self) -> None:
        """Start over as a new process would. Every weight is zero, so that nothing can seem to come back
        that a load has not brought."""
        self.buffer = None
        self._build()
        with torch.no_grad():
            for module in self.modules.values():
                for tensor in module.state_dict().values():
                    tensor.zero_()

    def tracked(self) -> dict[str, object]:
        """Return the live objects by name."""
        buffer = {} if self.buffer is None else {"buffer": self.buffer}
        return {**self.modules, **self.optimizers, **buffer}

    def state(self) -> State:
        """Return everything as state dicts."""
        arrays = {} if self.buffer is None else self.buffer.arrays()
        return {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "buffer": {name: torch.from_numpy(array) for name, array in arrays.items()},
            "counters": {} if self.buffer is None else self.buffer.counters(),
        }

    def template(self) -> State:
        """Return a state that a loader can fill in place: what Adam will need is allocated, not touched."""
        state = self.state()
        for name, optimizer in self.optimizers.items():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            state["optimizers"][name]["state"] = {
                index: {
                    "step": torch.zeros(()),
                    "exp_avg": torch.empty_like(parameter),
                    "exp_avg_sq": torch.empty_like(parameter),
                }
                for index, parameter in enumerate(parameters)
            }
        return state

    def take(self, state: State) -> None:
        """Go on from a loaded state. Weights are copied; arrays and moments are adopted as they are."""
        for name, module in self.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        if self.buffer is not None:
            arrays = {name: tensor.numpy() for name, tensor in state["buffer"].items()}
            self.buffer.adopt(arrays, state["counters"])

    def arrays(self) -> dict[str, Bytes]:
        """Return the memory of everything by name."""
        return {name: as_bytes(tensor) for name, tensor in flatten(self.state()).items()}

    def size(self) -> int:
        """Return the bytes of everything."""
        return sum(array.nbytes for array in self.arrays().values())

    def changed(self) -> list[Bytes]:
        """Return the memory that the last `train()` has written, leaving out what it did not."""
        state = self.state()
        rows = [] if self.buffer is None else self.buffer.newest(self.new_rows)
        weights = flatten({**state, "buffer": {}}).values()
        return [as_bytes(tensor) for tensor in weights] + [array.reshape(-1).view(np.uint8) for array in rows]

    def digests(self) -> dict[str, str]:
        """Return what two equal states have in common, without holding a copy."""
        counters = {} if self.buffer is None else self.buffer.counters()
        contents = {
            name: blake3(array.data, max_threads=blake3.AUTO).hexdigest()
            for name, array in self.arrays().items()
        }
        return {**contents, **{name: str(value) for name, value in counters.items()}}

    def _follow(self) -> None:
        with torch.no_grad():
            for name, module in self.modules.items():
                if name.startswith(TARGET):
                    leader = self.modules[name.removeprefix(f"{TARGET}_")]
                    for follower, parameter in zip(module.parameters(), leader.parameters(), strict=True):
                        follower.lerp_(parameter, 0.005)


def flatten(state: State | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return all tensors of a state by a name of their own."""
    found = {
        f"{name}.{key}": tensor
        for name, tensors in state["modules"].items()
        for key, tensor in tensors.items()
    }
    for name, optimizer in state["optimizers"].items():
        for index, moments in optimizer["state"].items():
            found |= {f"{name}.{index}.{key}": tensor for key, tensor in moments.items()}
    return found | {f"buffer.{name}": tensor for name, tensor in state["buffer"].items()}


def unflatten(tensors: Mapping[str, torch.Tensor], like: State, counters: dict[str, int]) -> State:
    """Return the state whose tensors `flatten` has named, with everything else from `like`."""
    return {
        "modules": {
            name: {key: tensors[f"{name}.{key}"] for key in module}
            for name, module in like["modules"].items()
        },
        "optimizers": {
            name: {
                **optimizer,
                "state": {
                    index: {key: tensors[f"{name}.{index}.{key}"] for key in moments}
                    for index, moments in optimizer["state"].items()
                },
            }
            for name, optimizer in like["optimizers"].items()
        },
        "buffer": {name: tensors[f"buffer.{name}"] for name in like["buffer"]},
        "counters": counters,
    }


def as_bytes(tensor: torch.Tensor) -> Bytes:
    """Return the memory of a tensor that lies in one piece."""
    array: NDArray[Any] = tensor.detach().numpy()
    return array.reshape(-1).view(np.uint8)


class Atari(Workload):
    """Nature-CNN, target, Adam, and a ring of stacked frames."""

    def __init__(self, frames: Path, rows: int, new_rows: int) -> None:
        self._frames = Frames(frames)
        self._rows = rows
        super().__init__(new_rows)

    def _build(self) -> None:
        network, target = _nature(), _nature()
        self.modules = {"policy": network, "target_policy": target}
        self.optimizers = {"optimizer": torch.optim.Adam(network.parameters(), lr=1e-4)}
        self.buffer = ReplayRing(self._rows, (4, 84, 84), (), np.uint8)

    def _add(self, buffer: ReplayRing) -> None:
        number = buffer.adds
        buffer.add(self._frames.take(), number % 6, float(number % 11 == 0), float(number % 997 == 0))


def _nature() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 6),
    )


class Vectors(Workload):
    """Actor and critics of SAC with their Adams, and a ring of float32 vectors, as locomotion has them."""

    OBSERVATION, ACTION, EPISODE = 17, 6, 1_000

    def __init__(self, rows: int, new_rows: int) -> None:
        self._rows = rows
        self._random = np.random.default_rng(0)
        self._body = np.zeros(self.OBSERVATION, np.float32)
        super().__init__(new_rows)

    def _build(self) -> None:
        actor = _perceptron(self.OBSERVATION, 2 * self.ACTION)
        inputs = self.OBSERVATION + self.ACTION
        critics, targets = (nn.ModuleList([_perceptron(inputs, 1) for _ in range(2)]) for _ in range(2))
        self.modules = {"actor": actor, "critics": critics, "target_critics": targets}
        self.optimizers = {
            "actor_optimizer": torch.optim.Adam(actor.parameters(), lr=3e-4),
            "critic_optimizer": torch.optim.Adam(critics.parameters(), lr=3e-4),
        }
        self.buffer = ReplayRing(self._rows, (self.OBSERVATION,), (self.ACTION,), np.float32)

    def _add(self, buffer: ReplayRing) -> None:
        action = self._random.uniform(-1, 1, self.ACTION).astype(np.float32)
        self._body = self._moved(self._body)
        done = buffer.adds % self.EPISODE == self.EPISODE - 1
        buffer.add(self._body, action, float(self._body[0]), float(done))

    def _fill(self, buffer: ReplayRing) -> None:
        """Write many episodes at once: a million calls of `add` in every process would take most of its time."""
        rows = len(buffer.rewards)
        bodies = np.zeros((-(-rows // self.EPISODE), self.OBSERVATION), np.float32)
        for step in range(min(self.EPISODE, rows)):
            bodies = self._moved(bodies)
            here = slice(step, None, self.EPISODE)
            buffer.observations[here] = bodies[: len(buffer.rewards[here])]
        buffer.actions[:] = self._random.uniform(-1, 1, buffer.actions.shape)
        buffer.rewards[:] = buffer.observations[:, 0]
        buffer.dones[self.EPISODE - 1 :: self.EPISODE] = 1
        buffer.position, buffer.full, buffer.adds = 0, True, rows

    def _moved(self, bodies: NDArray[np.float32]) -> NDArray[np.float32]:
        push = self._random.standard_normal(bodies.shape, np.float32)
        return np.float32(0.95) * bodies + np.float32(0.3) * push


def _perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
    )


class Model(Workload):
    """A model and Adam's two moments, a third each; no buffer. Everything changes between two saves."""

    def __init__(self, layers: int, width: int) -> None:
        self._layers, self._width = layers, width
        super().__init__(new_rows=0)

    def _build(self) -> None:
        stack = [nn.Linear(self._width, self._width, bias=False) for _ in range(self._layers)]
        self.modules = {"model": nn.Sequential(*stack)}
        self.optimizers = {"optimizer": torch.optim.Adam(self.modules["model"].parameters())}

    def _add(self, buffer: ReplayRing) -> None:
        raise AssertionError("There is no buffer.")


ATARI, GROWN, VECTORS, MODEL = "a", "a-grown", "b", "c"


def build(name: str, sizes: Sizes, frames: Path) -> Workload:
    """Return a workload as a new process has it; `fill` brings it to the middle of its training."""
    torch.manual_seed(0)
    new_frames = max(1, sizes.frame_rows // 100)
    made: Workload
    if name == ATARI:
        made = Atari(frames, sizes.frame_rows, new_frames)
    elif name == GROWN:
        made = Atari(frames, sizes.frame_rows * sizes.growth, new_frames)
    elif name == VECTORS:
        made = Vectors(sizes.vector_rows, max(1, sizes.vector_rows // 100))
    else:
        made = Model(sizes.layers, sizes.width)
    return made
