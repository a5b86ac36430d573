"""One rank of two that captures and restores sharded modules in ways that must be refused.

    misfit_script.py RANK MEETING

Prints one JSON object: what each attempt was answered with.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.capture.sharded_script import STEPS, Training, digest, local, meet, sharded
from unbroken.capture.source import policy_of_loaded
from unbroken.capture.torch import WITH_GRADIENTS
from unbroken.capture.weights import not_finite
from unbroken.errors import NotCapturable, RestoreFailed
from unbroken.state.graft import plan
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture


class Holder:
    """A tensor that is no parameter."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self.tensor = tensor


class Pair:
    """Two tensors."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a = a
        self.b = b


def even(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 6)


def taken(module: object) -> Snapshot:
    return capture({"it": module}, policy_of_loaded())


def refusals(saved: Snapshot, module: Any) -> list[str]:
    """Return why a state does not fit; looking at that must not touch the module."""
    before = digest(dict(module.named_parameters()))
    errors = [str(error) for error in plan(saved, {"it": module}, policy_of_loaded()).errors]
    assert before == digest(dict(module.named_parameters()))
    return errors


def unrest(module: object) -> str:
    try:
        taken(module)
    except NotCapturable as error:
        return str(error)
    return ""


def main() -> None:
    rank, meeting = int(sys.argv[1]), sys.argv[2]
    meet(rank, meeting)
    answers: dict[str, Any] = {}

    training = Training.build(rank, 1)
    for _ in range(STEPS):
        training.step()
    answers["plain"] = training.digests()

    line = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    named = init_device_mesh("cpu", (2,), mesh_dim_names=("other",))
    grid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    saved = taken(sharded(even(1), line))
    answers["fits"] = refusals(saved, sharded(even(2), line))
    answers["axis"] = refusals(saved, sharded(even(2), named))
    answers["grid"] = refusals(saved, sharded(even(2), grid))
    columns = sharded(even(2), line, shard_placement_fn=lambda p: Shard(p.ndim - 1))
    answers["columns"] = refusals(saved, columns)
    answers["plain module"] = refusals(saved, even(2))
    whole = nn.Module()
    whole.weight = nn.Parameter(distribute_tensor(torch.zeros(6, 4), line, [Shard(0)]))
    answers["no mesh"] = [
        str(error)
        for error in plan(taken(Holder(local_copy(whole))), {"it": Holder(None)}, policy_of_loaded()).errors
    ]

    module = sharded(even(1), line)
    x = torch.ones(2, 4)
    with torch.no_grad():
        module(x)
    answers["gathered"] = unrest(module)
    module.reshard()
    answers["at rest"] = unrest(module)
    module.set_requires_gradient_sync(False)
    module(x).sum().backward()
    answers["waiting"] = unrest(module)
    module.set_requires_gradient_sync(True)
    module(x).sum().backward()
    answers["reduced"] = unrest(module)

    twin = sharded(even(3), line)
    policy = policy_of_loaded(WITH_GRADIENTS)
    plan(capture({"it": module}, policy), {"it": twin}, policy).apply()
    gradients = [digest([p.grad for p in one.parameters()]) for one in (module, twin)]
    answers["gradients"] = gradients[0] == gradients[1] != digest([None, None])

    twin = sharded(even(3), line)
    twin.set_requires_gradient_sync(False)
    graft = plan(taken(module), {"it": twin}, policy_of_loaded())
    graft.apply()
    state = twin._get_fsdp_state()
    answers["synchronizes again"] = state._fsdp_param_group.reduce_grads

    if rank == 1:
        with torch.no_grad():
            local(module.weight)[-1, -1] = float("nan")
    answers["sick"] = not_finite(taken(module))

    held = Holder(distribute_tensor(torch.arange(6.0), line, [Replicate()]))
    other = Holder(distribute_tensor(torch.zeros(6), line, [Replicate()]))
    graft = plan(taken(held), {"it": other}, policy_of_loaded())
    graft.apply()
    assert other.tensor is not None
    answers["replicated"] = local(other.tensor).tolist()

    vector = torch.zeros(4)
    apart = Pair(*(DTensor.from_local(torch.ones(2), line, [Shard(0)]) for _ in "ab"))
    together = Pair(*(DTensor.from_local(part, line, [Shard(0)]) for part in (vector[:2], vector[2:])))
    graft = plan(capture({"it": apart}, policy), {"it": together}, policy)
    try:
        graft.apply()
    except RestoreFailed as error:
        answers["moved"] = str(error)

    print(json.dumps(answers))
    dist.destroy_process_group()


def local_copy(module: nn.Module) -> torch.Tensor:
    weight: Any = module.weight
    return weight.detach().clone()  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
