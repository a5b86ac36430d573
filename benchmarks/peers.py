"""The other ways to save the same workload, each as its documentation shows.

Few of them call fsync; the benchmark does it for all, since what is not durable is no checkpoint.
Every load ends with weights in the live modules and everything else in private memory.
"""

from __future__ import annotations

import os
import pickle
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.workloads import State, Workload, flatten, unflatten


class Peer(ABC):
    """Writes everything into a new directory each time."""

    name: ClassVar[str]
    background: ClassVar[bool] = False
    durable: ClassVar[bool] = False
    needs_buffer: ClassVar[bool] = False

    def __init__(self, workload: Workload, home: Path) -> None:
        self.workload = workload
        self._home = home
        self._saves = 0

    def prepare(self) -> None:
        """Nothing, for most."""

    def start(self) -> None:
        """None of them looks at a training before it saves it."""

    def save(self) -> None:
        """Write into the next directory."""
        self._saves += 1
        self._folder().mkdir()
        self.write(self._folder())

    def finish(self) -> None:
        """Nothing, for those who return when they have written."""

    def tidy(self) -> None:
        """Remove all but the newest directory."""
        for folder in self._home.iterdir():
            if folder != self._folder():
                shutil.rmtree(folder)

    def leave(self) -> None:
        """Nothing is held."""

    def load(self) -> None:
        """Read the newest directory."""
        self.read(self._folder())

    def close(self) -> None:
        """Nothing, for most."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Save the workload into an empty directory."""

    @abstractmethod
    def read(self, folder: Path) -> None:
        """Bring the workload back."""

    def _folder(self) -> Path:
        return self._home / f"{self._saves:04d}"


class StableBaselines(Peer):
    """SB3's own way: weights by torch.save, the buffer by pickle."""

    name = "SB3's way: torch.save + pickle"
    needs_buffer = True

    def write(self, folder: Path) -> None:
        _save_weights(self.workload.state(), folder)
        with (folder / "replay_buffer.pkl").open("wb") as file:
            pickle.dump(self.workload.buffer, file, protocol=pickle.HIGHEST_PROTOCOL)

    def read(self, folder: Path) -> None:
        state = _load_weights(folder)
        with (folder / "replay_buffer.pkl").open("rb") as file:
            loaded = pickle.load(file)
        state["buffer"] = {name: torch.from_numpy(array) for name, array in loaded.arrays().items()}
        self.workload.take({**state, "counters": loaded.counters()})


class TorchSave(Peer):
    """torch.save of all state dicts and arrays in one file."""

    name = "torch.save"

    def write(self, folder: Path) -> None:
        torch.save(self.workload.state(), folder / "state.pt")

    def read(self, folder: Path) -> None:
        self.workload.take(torch.load(folder / "state.pt", weights_only=True))


class CompressedNumpy(Peer):
    """numpy.savez_compressed for the buffer."""

    name = "numpy.savez_compressed"
    needs_buffer = True

    def write(self, folder: Path) -> None:
        _save_weights(self.workload.state(), folder)
        assert self.workload.buffer is not None
        arrays: dict[str, Any] = self.workload.buffer.arrays()
        np.savez_compressed(folder / "buffer.npz", **arrays)

    def read(self, folder: Path) -> None:
        state = _load_weights(folder)
        with np.load(folder / "buffer.npz") as arrays:
            state["buffer"] = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        self.workload.take(state)


class Safetensors(Peer):
    """safetensors, all tensors in one file."""

    name = "safetensors"

    def write(self, folder: Path) -> None:
        from safetensors.torch import save_file

        state = self.workload.state()
        about = {name: str(value) for name, value in state["counters"].items()}
        save_file(flatten(state), folder / "state.safetensors", metadata=about)

    def read(self, folder: Path) -> None:
        from safetensors import safe_open

        with safe_open(folder / "state.safetensors", framework="pt") as file:
            about = cast("dict[str, str] | None", file.metadata()) or {}
            # A tensor of it lies in the mapped file; a run that goes on needs memory of its own.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        counters = {name: int(value) for name, value in about.items()}
        self.workload.take(unflatten(tensors, self.workload.template(), counters))


class Distributed(Peer):
    """torch.distributed.checkpoint.save, two threads."""

    name = "torch DCP save"

    def prepare(self) -> None:
        import torch.distributed as dist

        meeting = self._home.with_suffix(".meeting")
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)

    def write(self, folder: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        save(self._state(), storage_writer=FileSystemWriter(folder, thread_count=2))

    def read(self, folder: Path) -> None:
        from torch.distributed.checkpoint.state_dict_loader import load

        state = self.workload.template()
        load(cast("dict[str, Any]", state), checkpoint_id=folder)
        self.workload.take(state)

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()

    def _state(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.workload.state())


class DistributedAsync(Distributed):
    """torch.distributed.checkpoint.async_save."""

    name = "torch DCP async_save"
    background = True
    _pending: Any = None

    def write(self, folder: Path) -> None:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self._pending = async_save(self._state(), checkpoint_id=folder)

    def finish(self) -> None:
        self._pending.result()


class TorchRL(Peer):
    """TorchRL's Checkpoint; the buffer takes part by its state dict."""

    name = "TorchRL Checkpoint"

    def prepare(self) -> None:
        os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
        from torchrl.checkpoint import Checkpoint

        self._type: Any = Checkpoint

    def write(self, folder: Path) -> None:
        self._checkpoint(_Buffer(self.workload.state())).save(folder / "checkpoint")

    def read(self, folder: Path) -> None:
        state = self.workload.template()
        buffer = _Buffer(state)
        self._checkpoint(buffer).load(folder / "checkpoint")
        if self.workload.buffer is not None:
            arrays: dict[str, NDArray[Any]] = {
                name: tensor.numpy() for name, tensor in state["buffer"].items()
            }
            self.workload.buffer.adopt(arrays, state["counters"])

    def _checkpoint(self, buffer: _Buffer) -> Any:
        workload = self.workload
        parts: dict[str, Any] = {**workload.modules, **workload.optimizers}
        if workload.buffer is not None:
            parts["replay_buffer"] = buffer
        return self._type(**parts)


class _Buffer:
    """What TorchRL asks of a component."""

    def __init__(self, state: State) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {**self._state["buffer"], **self._state["counters"]}

    def load_state_dict(self, loaded: dict[str, Any]) -> None:
        for name, tensor in self._state["buffer"].items():
            tensor.copy_(loaded[name])
        for name in self._state["counters"]:
            self._state["counters"][name] = int(loaded[name])


class Orbax(Peer):
    """Orbax's AsyncCheckpointer with numpy arrays."""

    name = "Orbax async"
    background = True

    def prepare(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import orbax.checkpoint as ocp

        self._args: Any = ocp.args
        self._checkpointer: Any = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def write(self, folder: Path) -> None:
        self._checkpointer.save(folder / "tree", args=self._args.StandardSave(_tree(self.workload.state())))

    def finish(self) -> None:
        self._checkpointer.wait_until_finished()

    def read(self, folder: Path) -> None:
        template = self.workload.template()
        found = self._checkpointer.restore(folder / "tree", args=self._args.StandardRestore(_tree(template)))
        counters = {name: int(found.pop(f"counter.{name}")) for name in template["counters"]}
        tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in found.items()}
        self.workload.take(unflatten(tensors, template, counters))

    def close(self) -> None:
        self._checkpointer.close()


def _tree(state: State) -> dict[str, Any]:
    counters = {f"counter.{name}": np.asarray(value, np.int64) for name, value in state["counters"].items()}
    return {**{name: tensor.numpy() for name, tensor in flatten(state).items()}, **counters}


def _save_weights(state: State, folder: Path) -> None:
    torch.save({**state, "buffer": {}}, folder / "weights.pt")


def _load_weights(folder: Path) -> State:
    state: State = torch.load(folder / "weights.pt", weights_only=True)
    return state


PEERS: tuple[type[Peer], ...] = (
    StableBaselines,
    TorchSave,
    CompressedNumpy,
    Safetensors,
    Distributed,
    DistributedAsync,
    TorchRL,
    Orbax,
)
