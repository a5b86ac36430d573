"""How a state is cut: the global shapes, which part of what each rank has written, and where that stands.

In the place of the pickle that torch.distributed.checkpoint keeps beside its files. What a planner adds (by
default: how flattened names are put together again) is kept if it is plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from unbroken.adapters.dcp.plain import is_plain, of_value, value_of
from unbroken.capture.tensor import DTYPES, name_of
from unbroken.errors import CorruptObject, NotCapturable
from unbroken.state.nodes import Value
from unbroken.state.snapshot import Component

COMPONENT = "sharding"
VERSION = "1.0.0"
"""Of the metadata of torch.distributed.checkpoint that this is written from."""

_LAYOUTS = {str(layout): layout for layout in (torch.strided,)}
_FORMATS = {str(kind): kind for kind in (torch.contiguous_format, torch.channels_last, torch.preserve_format)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one part of a state stands: in the shards of a rank, as the part `part` of this name."""

    rank: int
    part: int


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    rank: int
    part: int = 0
    offsets: list[int] | None = None
    index: int | None = None


class _Chunk(msgspec.Struct, frozen=True):
    offsets: list[int]
    sizes: list[int]


class _Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    dtype: str
    shape: list[int]
    chunks: list[_Chunk]
    layout: str = "torch.strided"
    memory_format: str = "torch.contiguous_format"
    requires_grad: bool = False
    pin_memory: bool = False


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One name of the state; without `tensor` it is bytes."""

    parts: list[_Part]
    tensor: _Tensor | None = None


class _Sharding(msgspec.Struct, frozen=True, omit_defaults=True):
    ranks: int
    state: dict[str, _Entry]
    version: str | None = None


def encode(metadata: Metadata, ranks: int) -> Component:
    """Return the component that says how a state is cut. `storage_data` holds the `Place` of each part.

    Raises:
        NotCapturable: the planner keeps something that is not plain.
    """
    if not is_plain(metadata.planner_data):
        raise NotCapturable(
            "The planner of this save keeps objects with the checkpoint, which would have to be pickled.",
            hint="Let planner_data hold numbers, strings, tuples, lists and dicts only.",
            place="planner_data",
        )
    parts: dict[str, list[_Part]] = {}
    places: Mapping[MetadataIndex, Place] = metadata.storage_data
    for index, place in places.items():
        offsets = None if index.offset is None else list(index.offset)
        parts.setdefault(index.fqn, []).append(_Part(place.rank, place.part, offsets, index.index))
    state = {
        name: _Entry(
            parts.get(name, []), _tensor(name, about) if isinstance(about, TensorStorageMetadata) else None
        )
        for name, about in metadata.state_dict_metadata.items()
    }
    sharding = _Sharding(ranks, state, metadata.version)
    roots: dict[str, Value] = {
        COMPONENT: of_value(msgspec.to_builtins(sharding)),
        "planner": of_value(metadata.planner_data),
    }
    return Component(COMPONENT, roots)


def decode(roots: Mapping[str, Value], *, key: str) -> tuple[Metadata, int]:
    """Return the metadata that `encode` took, and how many ranks have written.

    Raises:
        CorruptObject: it is something else; `key` is named.
    """
    try:
        sharding = msgspec.convert(value_of(roots.get(COMPONENT)), _Sharding)
        metadata = Metadata(
            {name: _about(entry) for name, entry in sharding.state.items()},
            planner_data=value_of(roots.get("planner")),
            storage_data=dict(_places(sharding)),
            version=sharding.version,
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise CorruptObject(f"{key} does not say how the state is cut: {error}.", key=key) from error
    return metadata, sharding.ranks


def _tensor(name: str, about: TensorStorageMetadata) -> _Tensor:
    properties: Any = about.properties
    layout, memory_format = str(properties.layout), str(properties.memory_format)
    if layout not in _LAYOUTS or memory_format not in _FORMATS or name_of(properties.dtype) not in DTYPES:
        raise NotCapturable(
            f"{name} is a {layout} tensor of {properties.dtype}, which cannot be saved.",
            hint="Keep it as plain tensors.",
            place=name,
        )
    return _Tensor(
        dtype=name_of(properties.dtype),
        shape=list(about.size),
        chunks=[_Chunk(list(chunk.offsets), list(chunk.sizes)) for chunk in about.chunks],
        layout=layout,
        memory_format=memory_format,
        requires_grad=properties.requires_grad,
        pin_memory=properties.pin_memory,
    )


def _about(entry: _Entry) -> TensorStorageMetadata | BytesStorageMetadata:
    saved = entry.tensor
    if saved is None:
        return BytesStorageMetadata()
    properties = TensorProperties(
        dtype=DTYPES[saved.dtype],
        layout=_LAYOUTS[saved.layout],
        requires_grad=saved.requires_grad,
        memory_format=_FORMATS[saved.memory_format],
        pin_memory=saved.pin_memory,
    )
    chunks = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in saved.chunks]
    return TensorStorageMetadata(properties, torch.Size(saved.shape), chunks)


def _places(sharding: _Sharding) -> Iterator[tuple[MetadataIndex, Place]]:
    for name, entry in sharding.state.items():
        for part in entry.parts:
            yield MetadataIndex(name, part.offsets, part.index), Place(part.rank, part.part)
