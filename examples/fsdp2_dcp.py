"""A model under FSDP2, saved with torch.distributed.checkpoint; each rank has generators of its own.

    torchrun --nproc-per-node 2 examples/fsdp2_dcp.py

Kill it whenever you like and start it again: it goes on from the newest checkpoint. With another number of ranks it
does so as well: torch cuts the tensors anew. What a rank has for itself it gets back by its number.
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import unbroken.dcp

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-path", default="runs/fsdp2")
parser.add_argument("--save-every", type=int, default=20, help="steps between two saves")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
target = nn.Linear(16, 4)
model = nn.Sequential(nn.Linear(16, 65), nn.Tanh(), nn.Linear(65, 4))
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank)  # from here on, each rank has batches of its own


def state(own):
    """All that is saved: what the ranks share in shards, and what each has for itself."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, **own}


reader = unbroken.dcp.StorageReader(args.save_path)
first = reader.latest_step() or 0
if first:
    own = {"generator": torch.get_rng_state()}
    saved = state(reader.rank_state(own))
    dcp.load(saved, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    torch.set_rng_state(own["generator"])

for step in range(first, args.steps):
    batch = torch.randn(32, 16)
    loss = (model(batch) - target(batch).detach()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    done = step + 1
    if done % args.save_every == 0 or done == args.steps:
        own = unbroken.dcp.rank_state({"generator": torch.get_rng_state()})
        writer = unbroken.dcp.StorageWriter(args.save_path, step=done, metrics={"loss": loss.item()})
        dcp.save(state(own), storage_writer=writer)
        if rank == 0:
            print(f"step {done}: saved, loss {loss.item():.4f}")

if rank == 0:
    print(f"ended at step {args.steps}, begun at {first}, next draw {torch.rand(()).item():.9f}")
dist.destroy_process_group()
