"""The memory that tensors lie in: written as the span that they cover, laid over the twin's.

A memory is finished when a walk has met every tensor in it, since only then is the span known. Offsets
are counted from the start of the span, so that a document does not tell how much memory lay around it,
and equal tensors give equal documents.

A saved memory is laid over one memory of the twin at most, and the other way round: tensors that shared
memory share it again, and tensors that did not do not.

Not promised: that elements stay aligned when tensors of different sizes of element shared one memory
and the twin's lies askew (refused), and copies from other devices than the CPU are plain, unpinned and
waited for; they were not tried on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from unbroken.errors import NotCapturable
from unbroken.state.memory import copy_all, overwrite
from unbroken.state.nodes import INLINE_BYTES, Array, Coded, Tuple, Value, class_name
from unbroken.state.snapshot import Bytes

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

THIN = 4
"""A lone tensor whose span is more than so many times its own size is written densely."""

_NUMPY: dict[torch.dtype, str] = {
    torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8", torch.complex64: "<c8",
    torch.complex128: "<c16", torch.bool: "|b1", torch.int8: "|i1", torch.int16: "<i2",
    torch.int32: "<i4", torch.int64: "<i8",
}  # fmt: skip
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BITS = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def numpy_name(dtype: torch.dtype) -> str:
    """Return the numpy dtype of the same bits; unsigned integers stand for what numpy lacks."""
    return _NUMPY.get(dtype) or _BITS.get(dtype.itemsize, "|u1")


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a tensor lies in a memory; `offset` in bytes from the start of the saved span."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def dense(self) -> int:
        """Bytes of the elements alone."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Where the last element ends. Only for tensors that have elements."""
        return self.offset + _extent(self.shape, self.strides, self.dtype.itemsize)

    @property
    def packed(self) -> bool:
        """Whether the elements lie side by side, in any order of the dimensions."""
        step = 1
        for stride, n in sorted(zip(self.strides, self.shape, strict=True)):
            if n != 1:
                if stride != step:
                    return False
                step *= n
        return True

    @property
    def contiguous(self) -> bool:
        return same_strides(self.shape, self.strides, contiguous_strides(self.shape))

    def within(self, storage: torch.UntypedStorage, start: int) -> torch.Tensor:
        """Return a new tensor over `storage`, in which the span begins at byte `start`."""
        plain = torch.empty(0, dtype=self.dtype, device=storage.device)
        return plain.set_(storage, (start + self.offset) // self.dtype.itemsize, self.shape, self.strides)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor in C order."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _canonical(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Give a dimension of one the stride that it would have in a dense tensor: its own means nothing,
    and equal tensors should give equal documents."""
    found = list(strides)
    for i in reversed(range(len(shape))):
        if shape[i] == 1:
            found[i] = found[i + 1] * shape[i + 1] if i + 1 < len(shape) else 1
    return tuple(found)


def same_strides(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two lists of strides mean the same. That of a dimension of one means nothing."""
    return all(x == y for n, x, y in zip(shape, a, b, strict=True) if n != 1)


def _extent(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    return itemsize * (1 + sum((n - 1) * st for n, st in zip(shape, strides, strict=True)))


def _start(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def is_thin(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread so thinly over its memory that it is written densely."""
    dense = tensor.numel() * tensor.itemsize
    return _extent(tensor.shape, tensor.stride(), tensor.itemsize) > THIN * max(dense, INLINE_BYTES)


@dataclass(frozen=True, slots=True)
class _Lying:
    """A tensor in a memory, and the payload to which its place in it is added. `rows` of it are written by
    the ring that it belongs to."""

    tensor: torch.Tensor
    payload: dict[str, Value]
    ring: tuple[object, str] | None
    rows: int | None
    holder: torch.Tensor


@dataclass(slots=True)
class MetMemory:
    """A memory while a walk meets the tensors in it."""

    storage: torch.UntypedStorage
    node: Coded
    tensors: list[_Lying] = field(default_factory=list)

    def add(self, tensor: torch.Tensor, payload: dict[str, Value], walk: Walk, holder: torch.Tensor) -> None:
        """Say that `tensor`, the plain form of `holder`, whose payload is being written, lies here."""
        self.tensors.append(_Lying(tensor, payload, walk.ring, walk.rows, holder))

    def finish(self, walk: Walk) -> None:
        """Write the span that the tensors cover, and where in it each one lies."""
        lone = self.tensors[0]
        first = lone.tensor
        if len(self.tensors) > 1 or walk.met_again(lone.holder):
            for lying in self.tensors:  # what others write into it, no ring knows
                lying.payload.pop("rows", None)
        elif "rows" in lone.payload:
            first = first[: lone.rows]
            if not first.numel():
                del lone.payload["memory"]
                return
            lone = self.tensors[0] = replace(lone, tensor=first)
        if len(self.tensors) == 1 and (first.is_contiguous() or is_thin(first)):
            ring = first.is_contiguous() and not walk.met_again(lone.holder)
            self.node.v = _write(_flat_bytes(first), first.dtype, walk, lone if ring else None)
            return
        # Aligned to the largest element, so that every tensor's offset counts in its own elements.
        coarse = max(lying.tensor.itemsize for lying in self.tensors)
        low = min(_start(lying.tensor) for lying in self.tensors) // coarse * coarse
        placed: list[tuple[torch.Tensor, Geometry]] = []
        for lying in self.tensors:
            tensor = lying.tensor
            strides = _canonical(tensor.shape, tensor.stride())
            geometry = Geometry(tensor.dtype, tuple(tensor.shape), strides, _start(tensor) - low)
            placed.append((tensor, geometry))
            if geometry.offset:
                lying.payload["offset"] = geometry.offset
            if not geometry.contiguous:
                lying.payload["strides"] = Tuple(v=list(strides))
        self.node.v = _write(self._span(low, placed, walk), first.dtype, walk)

    def _span(self, low: int, placed: list[tuple[torch.Tensor, Geometry]], walk: Walk) -> torch.Tensor:
        size = max(geometry.end for _, geometry in placed)
        whole = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        whole.set_(self.storage, low, (size,), (1,))
        if not walk.contents or any(geometry.packed and geometry.dense == size for _, geometry in placed):
            return whole
        # Bytes between the elements belong to nobody and may be anything: they are zeros in a document.
        clean = torch.zeros_like(whole)
        for tensor, geometry in placed:
            fill(geometry.within(clean.untyped_storage(), 0), tensor)
        return clean


def _write(flat: torch.Tensor, dtype: torch.dtype, walk: Walk, alone: _Lying | None = None) -> Array:
    size = flat.numel()
    name = numpy_name(dtype) if size % dtype.itemsize == 0 else "|u1"
    node = Array(d=name, s=(size // np.dtype(name).itemsize,))
    if not walk.contents:
        return node
    if flat.device.type == "cpu":
        # The audit reads on in a ring's memory while training goes on, so that keeps its size from now on.
        audited = alone is not None and alone.ring is not None
        live: Bytes = flat.numpy() if audited else seen_by_numpy(flat)
        if alone is not None and alone.ring is not None:
            node.b = walk.rows_of(alone.holder, live, live.nbytes // alone.tensor.shape[0], alone.ring)
        if node.b < 0:
            node.b, node.data = walk.pack(live)
        return node
    host: NDArray[np.uint8] = flat.cpu().numpy()  # fresh memory: nobody else writes to it
    if host.nbytes <= INLINE_BYTES:
        node.data = host.tobytes()
    else:
        node.b = walk.adopt(host)
    return node


class Home:
    """A saved memory, and where it will lie in the live program."""

    def __init__(self, blob: Bytes, adopt: Callable[[], bool]) -> None:
        owned = blob if blob.flags.writeable and blob.ctypes.data % 16 == 0 else blob.copy()
        self._bytes = torch.from_numpy(owned)
        self._take: Callable[[], bool] = adopt if owned is blob else lambda: True
        self._storage: torch.UntypedStorage | None = None
        self._start = 0
        self.fresh = False
        """New memory, which holds the saved values already."""

    @property
    def size(self) -> int:
        return self._bytes.numel()

    def read(self, geometry: Geometry) -> torch.Tensor | None:
        """Return the saved values, in the checkpoint's own memory; None if they leave it."""
        return geometry.within(self._bytes.untyped_storage(), 0) if geometry.end <= self.size else None

    def is_alone(self, geometry: Geometry) -> bool:
        """Whether this memory holds one dense tensor and nothing else."""
        return self._storage is None and self.size == geometry.dense and geometry.contiguous

    def settle(
        self,
        geometry: Geometry,
        twin: torch.Tensor | None,
        device: torch.device,
        graft: Graft,
        *,
        resized: bool = False,
    ) -> None:
        """Decide, at the first tensor in this memory, where it will lie: in the twin's own memory if
        that has room at the right distance and serves no other saved memory, else in new memory. That is the
        checkpoint's own where the program may not change its size, as it has where it has a tensor of another one."""
        if self._storage is not None:
            return
        if twin is not None and same_strides(geometry.shape, geometry.strides, twin.stride()):
            storage = twin.untyped_storage()
            start = _start(twin) - geometry.offset
            if start >= 0 and start + self.size <= storage.nbytes() and graft.claim(storage):
                self._storage, self._start = storage, start
                return
        self.fresh = True
        if device.type == "cpu" and not resized and self._take():
            self._storage = self._bytes.untyped_storage()
            return
        new = torch.empty_like(self._bytes, device=device)
        if device.type == "cpu":
            copy_all([(seen_by_numpy(new), self._bytes.numpy())])
        else:
            new.copy_(self._bytes)
        self._storage = new.untyped_storage()

    def view(self, geometry: Geometry) -> torch.Tensor | None:
        """Return a new tensor over the settled memory; None if its elements would not be aligned."""
        assert self._storage is not None
        if (self._start + geometry.offset) % geometry.dtype.itemsize:
            return None
        return geometry.within(self._storage, self._start)

    def holds(self, twin: torch.Tensor, geometry: Geometry) -> bool:
        """Whether the twin lies in the settled memory just as the saved tensor did."""
        assert self._storage is not None
        return (
            twin.untyped_storage().data_ptr() == self._storage.data_ptr()
            and _start(twin) == self._start + geometry.offset
            and same_strides(geometry.shape, geometry.strides, twin.stride())
        )


class MemoryCodec:
    """Reads the memory of tensors, for the tensors alone."""

    name = "torch.memory"
    mutable = True

    def encode(self, value: object, walk: Walk) -> Value:
        raise NotCapturable(
            f"{walk.place} is a bare {class_name(type(value))}, which cannot be saved.",
            hint="Keep a tensor of it instead.",
            place=walk.place,
        )

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Array):
            return graft.refuse("is no memory of tensors.", twin)
        return Home(graft.bytes_of(payload.b, payload.data), graft.adoption(payload.b))


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the bits of `source` into `target`, unless they are there already."""
    with torch.no_grad():
        for dimension, (n, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
            if n > 1 and stride == 0:  # torch does not copy into repeated elements
                target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
        # What is there already is perhaps a constant that the whole program shares, perhaps read-only.
        if target.device.type == "cpu":
            if _lie_alike(target, source):
                overwrite(_memory_of(target), _memory_of(source))
                return
            if torch.equal(_bits(target), _bits(source)):
                return
        with torch.inference_mode(target.is_inference()):
            target.copy_(source)


def _lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the elements of two tensors lie side by side, and in the same order."""
    strides = tuple(a.stride())
    alike = b.device.type == "cpu" and same_strides(a.shape, strides, b.stride())
    return alike and Geometry(a.dtype, tuple(a.shape), strides).packed


def _memory_of(tensor: torch.Tensor) -> Bytes:
    """Return the memory of a tensor on the CPU whose elements lie side by side."""
    return seen_by_numpy(_as_bytes(tensor))


class _Lent:
    """Shows numpy the memory of a flat tensor of bytes, and keeps the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False), "shape": (tensor.numel(),), "typestr": "|u1", "version": 3,
        }  # fmt: skip


def seen_by_numpy(flat: torch.Tensor) -> Bytes:
    """Return the memory of a flat tensor of bytes on the CPU, for a moment in which nobody changes its size.

    `Tensor.numpy` would forbid that for good: after a save the program's `resize_`, and `out=` with room for more, fail.
    """
    return np.asarray(_Lent(flat)) if flat.numel() else np.empty(0, np.uint8)


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return _as_bytes(tensor.contiguous())


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # The stride of a single element can be anything, and must be 1 to be seen as bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor as integers: NaN equals nothing, its bits do."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.itemsize])
