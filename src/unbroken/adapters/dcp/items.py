"""What a planner hands over for one item (a part of a tensor, or bytes), as a node of a document and back.

Tensors are written as the rest of the package writes them. Bytes are what the planner has pickled: where
that is a plain value (a learning rate, the names in a group of parameters) the value itself is written, and
pickled anew when it is read. So only what is an object of some class remains a pickle, which needs trust.

Nothing is unpickled here that could run code: the only pickles that are looked into are those that this
process has just made, and these without looking up any name.

Not promised: sparse, nested and quantized tensors. They are refused, as by the rest of the package.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unbroken.adapters.dcp.plain import is_plain, of_value, value_of
from unbroken.capture.memory import MemoryCodec, numpy_name, seen_by_numpy
from unbroken.capture.tensor import DTYPES, TENSOR, TensorCodec, name_of
from unbroken.capture.tensor import is_plain as is_plain_tensor
from unbroken.errors import CorruptObject, NotCapturable
from unbroken.state.nodes import INLINE_BYTES, Array, Coded, Dict, Opaque, Tuple, Value
from unbroken.state.snapshot import Blob, Bytes

PICKLE = "torch:save"
"""The class that stands at pickles: bytes of `torch.save`, whatever is in them."""

PLAIN_BYTES = 1 << 16
"""Pickles of more bytes are not looked into: no option is that long."""


class Items:
    """The items of one rank, as they are written: nodes by name, and the memory that they refer to."""

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self.nbytes = 0

    def of_tensor(self, name: str, tensor: torch.Tensor) -> Value:
        """Return the node of a tensor on any device. Its memory is used until all is written.

        Raises:
            NotCapturable: it is not plain values in memory.
        """
        if not is_plain_tensor(tensor):
            raise NotCapturable(
                f"{name} is a {str(tensor.layout).removeprefix('torch.')} tensor of {tensor.dtype},"
                " which cannot be saved.",
                hint="Keep it as plain tensors.",
                place=name,
            )
        fields: dict[str, Value] = {"dtype": name_of(tensor.dtype), "shape": Tuple(v=list(tensor.shape))}
        if tensor.numel():
            flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            raw = seen_by_numpy(flat.reshape(-1).view(torch.uint8))
            kind = numpy_name(tensor.dtype)
            array = Array(d=kind, s=(raw.nbytes // np.dtype(kind).itemsize,))
            array.b, array.data = self._place(raw)
            fields["memory"] = Coded(k=MemoryCodec.name, v=array)
        return Coded(k=TensorCodec.name, c=TENSOR, v=Dict(v=fields))

    def of_bytes(self, content: io.BytesIO) -> Value:
        """Return the node of what a planner has pickled."""
        view = content.getbuffer()
        if view.nbytes <= PLAIN_BYTES and is_plain(value := _looked_into(bytes(view))):
            return of_value(value)
        node = Opaque(c=PICKLE)
        node.b, node.data = self._place(np.frombuffer(view, np.uint8))
        return node

    def _place(self, raw: Bytes) -> tuple[int, bytes]:
        self.nbytes += raw.nbytes
        if raw.nbytes <= INLINE_BYTES:
            return -1, raw.tobytes()
        self.blobs.append(raw)
        return len(self.blobs) - 1, b""


def _looked_into(pickled: bytes) -> object:
    """Return the value in bytes that this process has pickled, or an object that is not plain."""
    try:
        return torch.load(io.BytesIO(pickled), weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, KeyError, AttributeError):
        return object()


def blob_of(node: Value) -> int:
    """Return the number of the blob that a node's bytes lie in, -1 where it has none."""
    if isinstance(node, Opaque):
        return node.b
    array = _memory(node)
    return -1 if array is None else array.b


def tensor_of(node: Value, raw: NDArray[np.uint8] | None, name: str) -> torch.Tensor:
    """Return the tensor of a node, over the memory `raw` of its blob.

    Raises:
        CorruptObject: it is no tensor, or does not fit its shape.
    """
    fields = node.v.v if isinstance(node, Coded) and isinstance(node.v, Dict) else None
    shape = (fields or {}).get("shape")
    dtype = DTYPES.get(str((fields or {}).get("dtype")))
    if dtype is None or not isinstance(shape, Tuple):
        raise CorruptObject(f"{name} is no tensor that can be read.")
    sizes = [n for n in shape.v if isinstance(n, int) and n >= 0]
    array = _memory(node)
    content = (
        raw if raw is not None else np.frombuffer(bytearray(b"" if array is None else array.data), np.uint8)
    )
    if len(sizes) != len(shape.v) or content.nbytes != math.prod(sizes) * dtype.itemsize:
        raise CorruptObject(f"{name} has {content.nbytes} bytes, which do not make {dtype}{shape.v}.")
    if not content.nbytes:
        return torch.empty(sizes, dtype=dtype)
    return torch.from_numpy(content).view(dtype).reshape(sizes)


def bytes_of(node: Value, raw: NDArray[np.uint8] | None) -> io.BytesIO:
    """Return what a planner expects: the pickle, or one made here of a plain value."""
    if isinstance(node, Opaque):
        return io.BytesIO(node.data if raw is None else raw.tobytes())
    content = io.BytesIO()
    value: Any = value_of(node)
    torch.save(value, content)
    content.seek(0)
    return content


def _memory(node: Value) -> Array | None:
    fields = node.v.v if isinstance(node, Coded) and isinstance(node.v, Dict) else None
    memory = (fields or {}).get("memory")
    return memory.v if isinstance(memory, Coded) and isinstance(memory.v, Array) else None
