"""Distributed tensors (`DTensor`): this rank's shard, with the layout that it is a part of.

Each rank captures what lies in its own memory, and says of which part of what it is: global shape, mesh,
placements, this rank's coordinate and offset. In a restore the shard is written where it lies: FSDP gathers
parameters out of that very memory. Neither needs another rank, so neither can hang.

A state that the program does not have yet (moments of an optimizer) is built on the mesh of its parameters.

Not promised: another layout. It is refused, with the one step that helps; cutting tensors anew is what
`unbroken.dcp` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, placement_types
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement

from unbroken.capture.memory import contiguous_strides
from unbroken.capture.mesh import CODEC as MESHES
from unbroken.capture.mesh import RESHARD, numbers_of
from unbroken.capture.tensor import DTYPES, TENSOR, TensorCodec, attributes_of, name_of
from unbroken.errors import RestoreFailed
from unbroken.state.nodes import Dict, Tuple, Value, class_name
from unbroken.state.policy import Policy
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

DTENSOR = "torch.distributed.tensor:DTensor"
_STRIDED: Any = getattr(placement_types, "_StridedShard", None)  # FSDP over tensor parallelism
_WORDS = re.compile(
    r"(shard|strided shard) (\d+)(?: by (\d+))?|(replicate)|partial (sum|avg|product|min|max|band|bor|bxor)"
)


def word_of(placement: Placement) -> str:
    """Say a placement in words of our own: how torch prints one has changed between its versions."""
    if _STRIDED is not None and isinstance(placement, _STRIDED):
        strided: Any = placement
        return f"strided shard {strided.dim} by {strided.split_factor}"
    if isinstance(placement, Shard):
        return f"shard {placement.dim}"
    if isinstance(placement, Replicate):
        return "replicate"
    return f"partial {placement.reduce_op}" if isinstance(placement, Partial) else repr(placement)


def placement_of(word: str) -> Placement | None:
    """Return the placement of these words, or None if they are not from `word_of`, or not for this torch."""
    found = _WORDS.fullmatch(word)
    if found is None:
        return None
    kind, dim, by, replicate, reduced = found.groups()
    if replicate:
        return Replicate()
    if reduced:
        return Partial(reduced)
    if kind == "shard":
        return Shard(int(dim))
    return _STRIDED(int(dim), split_factor=int(by)) if by and _STRIDED is not None else None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Of what a shard is a part, and which; but for the mesh, which stands for itself."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    placements: tuple[str, ...]
    local: tuple[int, ...]
    offset: tuple[int, ...]

    @classmethod
    def of(cls, tensor: DTensor) -> _Layout:
        shape, mesh = tuple(tensor.shape), tensor.device_mesh
        _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
        return cls(
            name_of(tensor.dtype),
            shape,
            tuple(tensor.stride()),
            tuple(map(word_of, tensor.placements)),
            tuple(_local(tensor).shape),
            tuple(offset),
        )

    @classmethod
    def read(cls, fields: dict[str, Value]) -> _Layout | None:
        """Return None for what `of` does not give."""
        shape, local, offset = (numbers_of(fields.get(key)) for key in ("shape", "local shape", "offset"))
        strides = numbers_of(fields["strides"]) if "strides" in fields else contiguous_strides(shape or ())
        dtype, placements = fields.get("dtype"), fields.get("placements")
        if shape is None or local is None or offset is None or strides is None:
            return None
        if dtype not in DTYPES or not isinstance(placements, Tuple):
            return None
        return cls(str(dtype), shape, strides, tuple(map(str, placements.v)), local, offset)

    def fields(self) -> dict[str, Value]:
        found: dict[str, Value] = {
            "dtype": self.dtype,
            "shape": Tuple(v=list(self.shape)),
            "placements": Tuple(v=list(self.placements)),
            "local shape": Tuple(v=list(self.local)),
            "offset": Tuple(v=list(self.offset)),
        }
        if self.strides != contiguous_strides(self.shape):
            found["strides"] = Tuple(v=list(self.strides))
        return found

    def __str__(self) -> str:
        part = f"the part {list(self.local)} from {list(self.offset)}"
        return f"{part} of a {self.dtype}{list(self.shape)} ({', '.join(self.placements)})"


class DTensorCodec:
    """`DTensor`: parameters under FSDP2 or tensor parallelism, and what an optimizer keeps for them."""

    name = "torch.dtensor"
    mutable = True

    def encode(self, value: DTensor, walk: Walk) -> Value:
        fields = _Layout.of(value).fields()
        fields["mesh"] = walk.child("mesh", value.device_mesh)
        if value.grad_fn is not None:
            walk.note("graph dropped", "the values are kept, the autograd graph is not.")
        elif value.requires_grad:
            fields["grad"] = True
        if extra := attributes_of(value):
            fields["attributes"] = Dict(v={key: walk.child(key, item) for key, item in extra.items()})
        fields["local"] = walk.child("local", _local(value))
        if _keeps_gradients(walk.policy) and value.is_leaf and value.grad is not None:
            fields["gradient"] = walk.child("gradient", value.grad)
        return Dict(v=fields)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        fields = payload.v if isinstance(payload, Dict) and payload.v is not None else {}
        saved = _Layout.read(fields)
        if saved is None:
            return graft.refuse("is no distributed tensor that can be read.", twin)
        if isinstance(twin, DTensor):
            if class_name(type(twin)) != cls or not graft.claim(twin):
                return graft.refuse(f"{saved} was saved, and what the program has here is another's.", twin)
            graft.register(twin)
            self._in_place(saved, fields, twin, graft)
            return twin
        if isinstance(twin, torch.Tensor) or "attributes" in fields or cls != DTENSOR:
            # `_is_param` is such an attribute: a Parameter is never built, sharded or not.
            now = (
                f"{name_of(twin.dtype)}{list(twin.shape)}" if isinstance(twin, torch.Tensor) else "no tensor"
            )
            return graft.refuse(
                f"{saved} was saved, and the program has {now} here, not distributed: {RESHARD}.", twin
            )
        return self._built(saved, fields, twin, graft)

    def _in_place(self, saved: _Layout, fields: dict[str, Value], twin: DTensor, graft: Graft) -> None:
        mesh = graft.value("mesh", fields.get("mesh"), twin.device_mesh)
        if MESHES.is_strange(twin.device_mesh, graft):
            return  # said once, at the mesh
        now = _Layout.of(twin)
        if now != saved or mesh != twin.device_mesh:
            elsewhere = "" if mesh == twin.device_mesh else ", on another mesh"
            graft.error(f"{saved} was saved, and the program has {now} here{elsewhere}: {RESHARD}.")
            return
        local = _local(twin)
        at = local.data_ptr()
        if graft.value("local", fields.get("local"), local) is not local:
            graft.error("the shard cannot be written where the program's lies.")
            return
        graft.write(_assert_unmoved, local, at, graft.place)
        if twin.is_leaf and twin.requires_grad != (fields.get("grad") is True):
            graft.write(twin.requires_grad_, fields.get("grad") is True)
        self._extras(fields, twin, graft)
        if _keeps_gradients(graft.policy) and twin.is_leaf:
            self._gradient(fields, twin, graft)

    def _built(self, saved: _Layout, fields: dict[str, Value], twin: object, graft: Graft) -> Any:
        mesh = graft.value("mesh", fields.get("mesh"))
        if mesh is None or MESHES.is_strange(mesh, graft):
            return None if twin is MISSING else twin
        placements = [found for word in saved.placements if (found := placement_of(word)) is not None]
        local = graft.value("local", fields.get("local"))
        if len(placements) != len(saved.placements) or not isinstance(local, torch.Tensor):
            return graft.refuse(f"{saved} cannot be built by this torch.", twin)
        if tuple(local.shape) != saved.local or name_of(local.dtype) != saved.dtype:
            return graft.refuse("the shard is not the one that its layout tells of.", twin)
        with torch.no_grad():
            result = DTensor.from_local(
                local, mesh, placements, run_check=False, shape=torch.Size(saved.shape), stride=saved.strides
            )
        graft.register(result)
        return result.requires_grad_() if fields.get("grad") is True else result

    def _extras(self, fields: dict[str, Value], twin: DTensor, graft: Graft) -> None:
        node, had = fields.get("attributes"), attributes_of(twin)
        for key, item in (node.v or {}).items() if isinstance(node, Dict) else ():
            new = graft.value(key, item, had.get(key, MISSING))
            if key not in had or had[key] is not new:
                graft.write(vars(twin).__setitem__, key, new)

    def _gradient(self, fields: dict[str, Value], twin: DTensor, graft: Graft) -> None:
        node, old = fields.get("gradient"), twin.grad
        new = None if node is None else graft.value("gradient", node, MISSING if old is None else old)
        if new is not None and (not isinstance(new, DTensor) or _Layout.of(new) != _Layout.of(twin)):
            graft.error("the gradient that was saved does not fit.")
        elif new is not old:
            graft.write(setattr, twin, "grad", new)


def _local(tensor: DTensor) -> torch.Tensor:
    """Return the shard itself: `to_local` gives another object each time, for autograd."""
    local: torch.Tensor = tensor._local_tensor
    return local


def _keeps_gradients(policy: Policy) -> bool:
    codec = policy.codecs.get(TENSOR)
    return isinstance(codec, TensorCodec) and codec.gradients


def _assert_unmoved(local: torch.Tensor, at: int, place: str) -> None:
    # Where shards shared memory in the saved program and do not in this one, a tensor is pointed to other
    # memory; the buffer that FSDP gathers from would keep the old values.
    if local.data_ptr() != at:
        raise RestoreFailed(
            f"The shard at {place} could not be written where it lies.",
            hint="Build the model as in the run that was saved: which of its tensors share memory has changed.",
        )


POLICY = Policy(codecs={DTENSOR: DTensorCodec()})
