"""What one rank has of a state, as one component: name -> the tensor or value, or the list of parts."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType

from unbroken.adapters.dcp.items import Items
from unbroken.adapters.dcp.sharding import Place
from unbroken.errors import CorruptObject
from unbroken.state.nodes import Dict, List, Value
from unbroken.state.parts import rank_name
from unbroken.state.snapshot import Component

NAME = "shards"


def label(rank: int) -> str:
    """Return the name of the component that a rank writes."""
    return rank_name(NAME, rank)


@dataclass(frozen=True, slots=True)
class Shards:
    """The component, its bytes, and where in it each item of the plan stands."""

    component: Component
    nbytes: int
    places: Mapping[MetadataIndex, Place]


def collect(plan: SavePlan, planner: SavePlanner, rank: int) -> Shards:
    """Return what the plan tells this rank to write. Memory of tensors on the CPU is shared, not copied.

    Raises:
        NotCapturable: a tensor cannot be saved; it is named.
    """
    items = Items()
    nodes: dict[str, list[Value]] = {}
    places: dict[MetadataIndex, Place] = {}
    for item in plan.items:
        data: Any = planner.resolve_data(item)
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            assert isinstance(data, io.BytesIO)
            node = items.of_bytes(data)
        else:
            node = items.of_tensor(name, data)
        found = nodes.setdefault(name, [])
        places[item.index] = Place(rank, len(found))
        found.append(node)
    joined: dict[str, Value] = {
        name: found[0] if len(found) == 1 else List(v=found) for name, found in nodes.items()
    }
    component = Component(label(rank), {NAME: Dict(v=joined)}, items.blobs)
    return Shards(component, items.nbytes, places)


def node_at(roots: Mapping[str, Value], name: str, place: Place, *, tensor: bool) -> Value:
    """Return what stands at a place of the component that rank `place.rank` wrote.

    Raises:
        CorruptObject: nothing does.
    """
    root = roots.get(NAME)
    table = root.v if isinstance(root, Dict) else None
    if table is None or name not in table:
        raise CorruptObject(f"{label(place.rank)} has nothing of {name}.")
    node = table[name]
    if tensor and isinstance(node, List):
        if place.part >= len(node.v):
            raise CorruptObject(
                f"{label(place.rank)} has {len(node.v)} parts of {name}, not part {place.part}."
            )
        return node.v[place.part]
    return node
