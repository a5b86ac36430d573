"""Device meshes: which ranks a program has laid out along which axes, and where in it this one stands.

A mesh belongs to the process: it holds process groups, and to build one all ranks have to meet. So the
program's own is kept, and what a checkpoint says of its mesh is only compared with it. Tensors that lie on a
mesh refer to it; that way a layout that does not fit is said once, not for each of them.

Not promised: the device type, which is the program's affair.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.distributed.device_mesh import DeviceMesh

from unbroken.state.nodes import Dict, Tuple, Value
from unbroken.state.policy import Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

MESH = "torch.distributed.device_mesh:DeviceMesh"
RESHARD = "load it with unbroken.dcp, which cuts tensors anew"
"""What to do with a checkpoint of another layout."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A mesh, and this rank's coordinate on it (None: it is not one of the mesh's ranks)."""

    shape: tuple[int, ...]
    axes: tuple[str, ...] | None
    ranks: tuple[int, ...]
    coordinate: tuple[int, ...] | None

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Standing:
        ranks: Any = mesh.mesh
        coordinate = mesh.get_coordinate()
        return cls(
            tuple(ranks.shape),
            mesh.mesh_dim_names,
            tuple(ranks.flatten().tolist()),
            None if coordinate is None else tuple(coordinate),
        )

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        names = f" ({', '.join(self.axes)})" if self.axes else ""
        at = "outside of it" if self.coordinate is None else f"at {list(self.coordinate)}"
        return f"a mesh of {shape} ranks{names}, this rank {at}"


@dataclass(slots=True)
class _Met:
    """What one plan has found of meshes."""

    own: list[DeviceMesh] = field(default_factory=list)
    strange: set[int] = field(default_factory=set)
    """Identities of meshes that a saved one does not fit."""


class MeshCodec:
    """`DeviceMesh`."""

    name = "torch.mesh"
    mutable = True

    def __init__(self) -> None:
        self._met: weakref.WeakKeyDictionary[Graft, _Met] = weakref.WeakKeyDictionary()

    def encode(self, value: DeviceMesh, walk: Walk) -> Value:
        standing = Standing.of(value)
        fields: dict[str, Value] = {"shape": Tuple(v=list(standing.shape))}
        if standing.axes is not None:
            fields["axes"] = Tuple(v=list(standing.axes))
        if standing.coordinate is not None:
            fields["coordinate"] = Tuple(v=list(standing.coordinate))
        fields["ranks"] = Tuple(v=list(standing.ranks))
        return Dict(v=fields)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        saved = _read(payload)
        if saved is None:
            return graft.refuse("is no mesh that can be read.", twin)
        met = self._met.setdefault(graft, _Met())
        if not isinstance(twin, DeviceMesh):
            # State that the program does not have yet lies where its parameters lie.
            own = next((mesh for mesh in met.own if Standing.of(mesh) == saved), None)
            return own or graft.refuse(f"was saved on {saved}, and the program has none here.", twin)
        met.own.append(twin)
        now = Standing.of(twin)
        if now != saved:
            met.strange.add(id(twin))
            found = str(now) if str(now) != str(saved) else "one of other ranks"
            return graft.refuse(f"was saved on {saved}, and the program has {found}: {RESHARD}.", twin)
        return twin

    def is_strange(self, mesh: object, graft: Graft) -> bool:
        """Whether the plan has said already that this mesh of the program does not fit."""
        met = self._met.get(graft)
        return met is not None and id(mesh) in met.strange


def _read(payload: Value) -> Standing | None:
    if not isinstance(payload, Dict) or payload.v is None:
        return None
    v = payload.v
    shape, ranks, axes = numbers_of(v.get("shape")), numbers_of(v.get("ranks")), v.get("axes")
    if shape is None or ranks is None:
        return None
    names = tuple(str(name) for name in axes.v) if isinstance(axes, Tuple) else None
    return Standing(shape, names, ranks, numbers_of(v.get("coordinate")))


def numbers_of(node: Value) -> tuple[int, ...] | None:
    """Return the whole numbers of a tuple in a document; None if it is anything else."""
    if not isinstance(node, Tuple) or not all(type(n) is int and n >= 0 for n in node.v):
        return None
    return tuple(n for n in node.v if isinstance(n, int))


CODEC = MeshCodec()

POLICY = Policy(codecs={MESH: CODEC})
