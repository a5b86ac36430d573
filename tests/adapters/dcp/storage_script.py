"""Ranks that save a sharded model with torch.distributed.checkpoint, and ranks that load it.

    storage_script.py RANK SIZE MEETING COMMAND ROOT

Prints one line of JSON: what a rank has seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import unbroken.dcp
from unbroken.repo.repository import Repository

FIRST, SECOND, MORE = 5, 7, 3

dcp: Any = import_module("torch.distributed.checkpoint")  # which says to no type checker what it exports


class Settings:
    """Of a class that torch can only pickle."""

    depth = 3


class Training:
    """A model, cut over the ranks or whole in one process, and its optimizer. Ranks get the same batches."""

    def __init__(self, size: int, seed: int, *, cut: bool = True) -> None:
        torch.manual_seed(seed)
        self.model: Any = nn.Sequential(nn.Linear(64, 129), nn.ReLU(), nn.Linear(129, 3))
        self.model.register_buffer("frozen", torch.arange(5000.0))
        if cut:
            mesh = init_device_mesh("cpu", (size,))
            fully_shard(self.model[0], mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def train(self, first: int, end: int) -> None:
        for step in range(first, end):
            torch.manual_seed(step)
            self.model(torch.randn(8, 64)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def take(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    def digest(self) -> str:
        """Of the whole state, wherever its parts lie: the same on every rank."""
        found = hashlib.sha256()

        def add(value: Any) -> None:
            if isinstance(value, DTensor):
                value = value.full_tensor()
            if isinstance(value, torch.Tensor):
                found.update(
                    str((value.dtype, tuple(value.shape))).encode() + value.detach().numpy().tobytes()
                )
            elif isinstance(value, dict):
                for key in sorted(value):
                    found.update(str(key).encode())
                    add(value[key])
            elif isinstance(value, (list, tuple)):
                for item in value:
                    add(item)
            else:
                found.update(repr(value).encode())

        add(self.state())
        return found.hexdigest()


class Failing(DefaultSavePlanner):
    """Fails on one rank, or is killed there, when the part `name` is about to be written."""

    def __init__(self, name: str, *, kill: bool = False) -> None:
        super().__init__()
        self.name, self.kill = name, kill

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.index.fqn == self.name and dist.get_rank() == 1:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("rank 1 has had enough")
        return super().resolve_data(write_item)


def error_of(call: Any) -> str:
    """Return what torch raises here."""
    try:
        call()
    except CheckpointException as error:
        kinds = sorted({f"{type(found).__name__}: {found}" for found, _ in error.failures.values()})
        return f"{sorted(error.failures)} " + "; ".join(kinds)
    return ""


def own(rank: int) -> dict[str, Any]:
    return {"draws": torch.full((3,), float(rank)), "name": f"rank {rank}"}


def save(rank: int, size: int, root: str) -> dict[str, Any]:
    """Save, change, save in the background; fail in several ways in between."""
    training = Training(size, seed=1)
    writer = unbroken.dcp.StorageWriter
    training.train(0, FIRST)
    saw: dict[str, Any] = {"first": training.digest()}
    state = {**training.state(), **unbroken.dcp.rank_state(own(rank))}
    dcp.save(state, storage_writer=writer(root, step=FIRST, metrics={"loss": 0.5}))
    saw["own blobs"] = sorted(of_rank(root, rank).values())
    failing = Failing("model.0.weight")
    saw["failed"] = error_of(lambda: dcp.save(state, storage_writer=writer(root, step=6), planner=failing))
    saw["no step"] = error_of(lambda: dcp.save(state, storage_writer=writer(root)))
    elsewhere = writer(root if rank == 0 else f"{root}-elsewhere", step=6)
    saw["elsewhere"] = error_of(lambda: dcp.save(state, storage_writer=elsewhere))
    for _ in range(2):
        cached = DefaultSavePlanner(enable_plan_caching=True)
        saw["cached"] = error_of(
            lambda planner=cached: dcp.save(
                training.state(), storage_writer=writer(root, step=6, keep_last=9), planner=planner
            )
        )
    training.train(FIRST, SECOND)
    state = {**training.state(), **unbroken.dcp.rank_state(own(rank))}
    group: Any = dist.new_group(backend="gloo")  # training's own collectives go on meanwhile
    future: Any = dcp.async_save(
        state, storage_writer=writer(root), checkpoint_id=str(SECOND), process_group=group
    )
    saw["at the time of the save"] = training.digest()
    training.train(SECOND, SECOND + MORE)  # the background writes what was, not what is
    future.result()
    saw["end"] = training.digest()
    return saw


def of_rank(root: str, rank: int) -> dict[str, int]:
    """Return the blobs of the newest checkpoint that this rank has written."""
    repository = Repository.open(root, Path(root).name)
    commit = repository.commits()[0]
    document = repository.document(commit, f"shards@rank{rank}")
    return {chunk: ref.size for ref in document.blobs for chunk in ref.chunks}


def load(rank: int, size: int, root: str) -> dict[str, Any]:
    """Load the first checkpoint into another model, and train on as far as the one that was saved."""
    reader = unbroken.dcp.StorageReader(root, step=FIRST)
    training, mine = Training(size, seed=2), own(9)
    state = training.state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", unbroken.dcp.RankStateWarning)
        extra = reader.rank_state(mine)
    state.update(extra)
    dcp.load(state, storage_reader=reader)
    training.take(state)
    saw: dict[str, Any] = {"first": training.digest()}
    training.train(FIRST, SECOND)
    saw["second"] = training.digest()
    training.train(SECOND, SECOND + MORE)
    saw["end"] = training.digest()
    saw["own"] = [mine["draws"].tolist(), mine["name"], list(extra)]
    state = training.state()
    dcp.load(state, storage_reader=unbroken.dcp.StorageReader(root))
    training.take(state)
    saw["newest"] = training.digest()
    saw["warned"] = [str(w.message) for w in caught if w.category is unbroken.dcp.RankStateWarning]
    return saw


def adopt(rank: int, size: int, root: str) -> dict[str, Any]:
    """Rank 0 goes on with what rank 1 had."""
    reader = unbroken.dcp.StorageReader(root, step=FIRST)
    mine = own(9)
    state = {**reader.rank_state(mine, of=1)}
    dcp.load(state, storage_reader=reader)
    return {"own": [mine["draws"].tolist(), mine["name"]]}


def kill(rank: int, size: int, root: str) -> dict[str, Any]:
    """Rank 1 is killed while it writes a second checkpoint."""
    training = Training(size, seed=1)
    training.train(0, FIRST)
    dcp.save(training.state(), storage_writer=unbroken.dcp.StorageWriter(root, step=FIRST))
    training.train(FIRST, SECOND)
    print(json.dumps({"first": "saved"}), flush=True)
    planner = Failing("model.0.weight", kill=True)
    dcp.save(training.state(), storage_writer=unbroken.dcp.StorageWriter(root, step=SECOND), planner=planner)
    return {}


def again(rank: int, size: int, root: str) -> dict[str, Any]:
    """After the kill: what is newest loads, and the save that was cut off is made again."""
    training = Training(size, seed=2)
    reader = unbroken.dcp.StorageReader(root)
    saw: dict[str, Any] = {"newest": reader.latest_step()}
    state = training.state()
    dcp.load(state, storage_reader=reader)
    training.take(state)
    training.train(FIRST, SECOND)
    dcp.save(training.state(), storage_writer=unbroken.dcp.StorageWriter(root, step=SECOND))
    return {**saw, "second": training.digest()}


def damage(rank: int, size: int, root: str) -> dict[str, Any]:
    """Objects need trust, and a checkpoint of which rank 1's part is damaged loads on no rank."""
    training = Training(size, seed=1)
    state = {**training.state(), "settings": Settings()}
    dcp.save(state, storage_writer=unbroken.dcp.StorageWriter(root, step=1, keep_last=1))
    saw: dict[str, Any] = {}

    def into(trust: bool = False, **more: Any) -> Any:
        target = {**Training(size, seed=2).state(), **more}
        dcp.load(target, storage_reader=unbroken.dcp.StorageReader(root, trust=trust))
        return target

    saw["with the key"] = into(settings=None)["settings"].depth
    os.environ["UNBROKEN_KEY"] = "another key than that of the writer"
    saw["with another key"] = error_of(lambda: into(settings=None))
    saw["trusted"] = into(trust=True, settings=None)["settings"].depth
    saw["without the object"] = error_of(into)
    saw["of another step"] = error_of(
        lambda: dcp.load(training.state(), storage_reader=unbroken.dcp.StorageReader(root, step=4))
    )
    dist.barrier()
    if rank == 0:
        spoil(root)
    dist.barrier()
    other = Training(size, seed=2)
    before, target = other.digest(), other.state()
    saw["damaged"] = error_of(lambda: dcp.load(target, storage_reader=unbroken.dcp.StorageReader(root)))
    saw["untouched"] = other.digest() == before
    return saw


def spoil(root: str) -> None:
    """Turn one byte in the weights that rank 1 has written."""
    repository = Repository.open(root, Path(root).name)
    wanted = set(of_rank(root, 1)) - set(of_rank(root, 0))
    for path in sorted(Path(root).rglob("*.pack")):
        data = bytearray(path.read_bytes())
        name = path.stem
        repository._index.refresh()
        entries = [e for e in repository._index.packs[name].entries if e.digest in wanted]
        if entries:
            data[entries[0].offset + entries[0].length - 1] ^= 1
            path.chmod(0o600)
            path.write_bytes(data)
            return
    raise AssertionError("Rank 1 has written nothing.")


def plain(root: str) -> dict[str, Any]:
    """A process alone, without a process group or a cut."""
    training = Training(1, seed=2, cut=False)
    state = training.state()
    dcp.load(state, storage_reader=unbroken.dcp.StorageReader(root, step=FIRST))
    training.take(state)
    saw: dict[str, Any] = {"first": training.digest()}
    dcp.save(training.state(), storage_writer=unbroken.dcp.StorageWriter(f"{root}-whole", step=FIRST))
    training.train(FIRST, SECOND + MORE)
    saw["end"] = training.digest()
    return saw


def main() -> None:
    rank, size, meeting, command, root = sys.argv[1:]
    warnings.simplefilter("error", RuntimeWarning)
    saw: dict[str, Any] = {}
    if command == "alone":
        saw["plain"] = plain(root)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
    commands = {
        "save": save, "load": load, "alone": load, "kill": kill, "again": again, "damage": damage,
    }  # fmt: skip
    saw.update(commands[command](int(rank), int(size), root))
    if command == "alone":
        saw["adopted"] = adopt(int(rank), int(size), root)
    print(json.dumps(saw), flush=True)
    dist.barrier()  # so that no rank goes while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
