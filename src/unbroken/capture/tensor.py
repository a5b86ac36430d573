"""Torch tensors: values, exact dtypes, and which of them share memory.

A tensor is written as its geometry and the memory it lies in. A memory is written once, as the span of
bytes that the tensors met in the walk cover, whoever meets it first: tied weights, parameters that are
views of one vector, overlapping slices come back as such, and a slice of a huge buffer costs its own
bytes. A lone tensor that is spread thinly over its memory is written densely.

In place: where the twin lies in its memory as the saved tensor did, values are copied into it. Where it
does not, its `data` is re-pointed, so that a Parameter keeps its identity and shared memory is shared
again. The twin's device is kept. Parameters are never given another shape or dtype, and built only as those of
a network, or of an optimizer, that is built.

Not promised: autograd graphs (a dropped graph is noted), `.grad` unless asked for, memory shared between a tensor and
a numpy array; sparse, nested and quantized tensors are refused by name at capture. Distributed ones:
`dtensor`.
"""

from __future__ import annotations

import math
import re
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn.parameter import Parameter

from unbroken.capture.memory import Geometry, Home, MemoryCodec, MetMemory, contiguous_strides, fill, is_thin
from unbroken.errors import NotCapturable
from unbroken.state.nodes import Coded, Dict, Tuple, Value, class_name
from unbroken.state.planning.objects import covers_method
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_Key: TypeAlias = "tuple[str, int, int]"
"""Device, address and size of a memory."""

_UNINITIALIZED: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]  # not in torch's stubs

TENSOR = "torch:Tensor"

_NUMBER = re.compile(r"bool|u?int(8|16|32|64)|b?float.*|complex.*")
DTYPES: dict[str, torch.dtype] = {
    name: value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and _NUMBER.fullmatch(name := str(value).removeprefix("torch."))
}
"""Dtypes of whole bytes. Quantized ones need more than their bits, and torch crashes without it."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is plain values in memory."""
    return tensor.layout == torch.strided and tensor.dtype in _NAMES and not tensor.is_nested


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype in documents."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


class TensorCodec:
    """Every strided tensor: plain ones, Parameters, buffers, subclasses that lie in ordinary memory.

    `gradients`: whether `.grad` comes back as well, which only a loop needs that accumulates gradients
    from one clean point to the next; it costs as much as the weights.
    """

    name = "torch.tensor"
    mutable = True

    def __init__(self, *, gradients: bool = False) -> None:
        self.gradients = gradients
        self._met: weakref.WeakKeyDictionary[Walk, dict[_Key, MetMemory]] = weakref.WeakKeyDictionary()
        self._devices: weakref.WeakKeyDictionary[Graft, _Devices] = weakref.WeakKeyDictionary()

    def encode(self, value: torch.Tensor, walk: Walk) -> Value:
        fields: dict[str, Value] = {"dtype": name_of(value.dtype)}
        if isinstance(value, _UNINITIALIZED):
            return Dict(v={**fields, "lazy": True})
        if not is_plain(value):
            raise NotCapturable(
                f"{walk.place} is a {_kind(value)} tensor, which cannot be saved.",
                hint="Keep it as plain tensors.",
                place=walk.place,
            )
        fields["shape"] = Tuple(v=list(value.shape))
        if value.device.type != "cpu":
            fields["device"] = str(value.device)
        if value.grad_fn is not None:
            walk.note("graph dropped", "the values are kept, the autograd graph is not.")
        elif value.requires_grad:
            fields["grad"] = True
        if extra := attributes_of(value):
            fields["attributes"] = Dict(v={key: walk.child(key, item) for key, item in extra.items()})
        lying = value.detach()
        if lying.is_conj() or lying.is_neg():  # lazily computed values, written as what they are
            lying = lying.resolve_conj().resolve_neg()
        if walk.rows is not None and lying.ndim and walk.rows < lying.shape[0]:
            fields["rows"] = walk.rows
        if lying.numel() and lying.device.type != "meta":
            self._place(lying, fields, walk, value)
        if self.gradients and value.is_leaf and value.grad is not None:
            fields["gradient"] = walk.child("gradient", value.grad)
        return Dict(v=fields)

    def _place(
        self, tensor: torch.Tensor, fields: dict[str, Value], walk: Walk, holder: torch.Tensor
    ) -> None:
        try:
            storage = tensor.untyped_storage()
            key = (str(storage.device), storage.data_ptr(), storage.nbytes())
        except (NotImplementedError, RuntimeError) as error:
            raise NotCapturable(
                f"{walk.place} is a {class_name(type(tensor))}, which has no memory of its own: {error}",
                hint="Keep it as plain tensors.",
                place=walk.place,
            ) from error
        met = self._met.setdefault(walk, {})

        def make() -> Coded:
            memory = met[key] = MetMemory(storage, Coded(k=MemoryCodec.name))
            walk.later(lambda: memory.finish(walk), last=True)
            return memory.node

        fields["memory"] = walk.shared("memory", key, storage, make)
        met[key].add(tensor, fields, walk, holder)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        saved = _Saved.read(payload)
        if saved is None:
            return graft.refuse("is no tensor that can be read.", twin)
        if saved.lazy:
            return self._lazy(cls, twin, graft)
        own: torch.Tensor | None = None
        if isinstance(twin, torch.Tensor) and _fits(twin, cls, saved) and graft.claim(twin):
            own = twin
        if cls == class_name(Parameter) and own is None and not graft.growth.growing:
            found = _described(twin)
            return graft.refuse(f"a Parameter {saved} was saved and the program has {found} here.", twin)
        devices = self._devices.setdefault(graft, _Devices())
        device = devices.of(saved, twin)
        if own is not None:
            graft.register(own)
            if isinstance(own, Parameter):
                devices.learn(saved.device, own.device)
        other = isinstance(twin, torch.Tensor) and own is None
        result = self._values(saved, own, device, graft, other=other)
        if result is None:
            return graft.refuse("names memory that it does not have.", twin)
        if own is None:
            result = self._dressed(result, saved, cls, twin, graft)
            graft.register(result)
        elif result.is_leaf and result.requires_grad != saved.grad:
            graft.write(result.requires_grad_, saved.grad)
        devices.tell(saved.device, result.device, graft)
        self._extras(payload, result, own=own is not None, graft=graft)
        if self.gradients and result.is_leaf:
            self._gradient(payload, result, graft)
        return result

    def _lazy(self, cls: str, twin: object, graft: Graft) -> Any:
        if class_name(type(twin)) == cls and graft.claim(twin):
            return twin
        return graft.refuse(f"a lazy Parameter was saved and the program has {_described(twin)} here.", twin)

    def _values(
        self, saved: _Saved, twin: torch.Tensor | None, device: torch.device, graft: Graft, *, other: bool
    ) -> torch.Tensor | None:
        """Return the twin, with its writes planned, or a new tensor; None if the document lies. `other`: the program
        has another tensor there."""
        geometry = saved.geometry
        if not geometry.dense or device.type == "meta":
            return _blank(saved, device) if twin is None else twin
        home = graft.value("memory", saved.memory)
        source = home.read(geometry) if isinstance(home, Home) else None
        if not isinstance(home, Home) or source is None:
            return None
        if saved.rows >= 0:
            target = _blank(saved, device) if twin is None else twin
            graft.write(fill, target.detach()[: saved.rows], source)
            return target
        if (
            twin is not None
            and is_thin(twin)
            and home.is_alone(geometry)
            and graft.claim(twin.untyped_storage())
        ):
            graft.write(fill, twin.detach(), source)
            return twin
        home.settle(geometry, twin, device, graft, resized=other)
        lying = home.view(geometry)
        if lying is None:
            return None
        if not home.fresh:
            graft.write(fill, lying, source)
        if twin is None:
            return lying
        if not home.holds(twin, geometry):
            graft.write(_repoint, twin, lying)
        return twin

    def _dressed(
        self, plain: torch.Tensor, saved: _Saved, cls: str, twin: object, graft: Graft
    ) -> torch.Tensor:
        """Give a newly built tensor its class and its flag."""
        if isinstance(twin, torch.Tensor) and (twin.shape != plain.shape or twin.dtype != plain.dtype):
            graft.note("replaced", f"{_described(twin)} by {saved}.")
        if cls == class_name(Parameter):
            return Parameter(plain, requires_grad=saved.grad)
        if cls != TENSOR:
            found = graft.buildable_class(cls, twin)
            if found is not None and issubclass(found, torch.Tensor) and not issubclass(found, Parameter):
                plain = plain.as_subclass(found)
        return plain.requires_grad_() if saved.grad else plain

    def _gradient(self, payload: Value, result: torch.Tensor, graft: Graft) -> None:
        assert isinstance(payload, Dict) and payload.v is not None
        node, old = payload.v.get("gradient"), result.grad
        new = None if node is None else graft.value("gradient", node, MISSING if old is None else old)
        if isinstance(new, torch.Tensor) and (new.shape != result.shape or new.dtype != result.dtype):
            graft.error("the gradient that was saved does not fit.")
        elif new is not old:
            graft.write(setattr, result, "grad", new)

    def _extras(self, payload: Value, result: torch.Tensor, *, own: bool, graft: Graft) -> None:
        assert isinstance(payload, Dict) and payload.v is not None
        had: dict[str, Any] = attributes_of(result) if own else {}
        node = payload.v.get("attributes")
        if not isinstance(node, Dict) or not node.v:
            return
        for key, item in node.v.items():
            new = graft.value(key, item, had.get(key, MISSING))
            if covers_method(result, key, new, had):
                graft.note_at(key, "error", "would stand in front of a method of tensors.")
            elif key not in had or had[key] is not new:
                graft.write(vars(result).__setitem__, key, new)


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What the program hung on a tensor, without the compiler's marks, which belong to the process."""
    found = vars(tensor)
    if not found:
        return {}
    return {key: found[key] for key in sorted(found) if not key.startswith("_dynamo")}


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    return (
        name_of(tensor.dtype) if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")
    )


def _described(value: object) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, _UNINITIALIZED):
        return "a lazy Parameter (run one forward pass before resuming)"
    if isinstance(value, torch.Tensor):
        return f"{name_of(value.dtype)}{list(value.shape)}"
    return class_name(type(value))


def _fits(twin: torch.Tensor, cls: str, saved: _Saved) -> bool:
    return (
        class_name(type(twin)) == cls
        and is_plain(twin)
        and twin.dtype == saved.dtype
        and tuple(twin.shape) == saved.shape
        and (twin.is_leaf or not twin.requires_grad)
        and not twin.is_conj()
        and not twin.is_neg()
    )


def _blank(saved: _Saved, device: torch.device) -> torch.Tensor:
    # Some dtypes cannot be filled; a tensor without elements needs no filling.
    make = torch.zeros if math.prod(saved.shape) else torch.empty
    return make(saved.shape, dtype=saved.dtype, device=device)


def _repoint(twin: torch.Tensor, lying: torch.Tensor) -> None:
    twin.data = lying  # the object stays: optimizers and modules hold it


@dataclass(frozen=True, slots=True)
class _Saved:
    """A tensor's payload, checked. `geometry` is that of what is in the document: of the first `rows`
    rows where a ring buffer has written no more."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    geometry: Geometry
    device: str = "cpu"
    grad: bool = False
    lazy: bool = False
    rows: int = -1
    memory: Value = None

    def __str__(self) -> str:
        return f"{name_of(self.dtype)}{list(self.shape)}"

    @classmethod
    def read(cls, payload: Value) -> _Saved | None:
        """Return None for what `TensorCodec.encode` does not write."""
        if not isinstance(payload, Dict) or payload.v is None:
            return None
        v = payload.v
        dtype = DTYPES.get(str(v.get("dtype")))
        if dtype is None:
            return None
        if v.get("lazy") is True:
            return cls(dtype, (), Geometry(dtype, (), ()), lazy=True)
        shape, offset, rows = _numbers(v.get("shape")), v.get("offset", 0), v.get("rows", -1)
        if shape is None or type(offset) is not int or offset < 0 or offset % dtype.itemsize:
            return None
        if type(rows) is not int or (rows >= 0 and (not shape or rows > shape[0])):
            return None
        strides = _numbers(v["strides"]) if "strides" in v else contiguous_strides(shape)
        device = v.get("device", "cpu")
        if strides is None or len(strides) != len(shape) or not is_device(device):
            return None
        written = (rows, *shape[1:]) if rows >= 0 else shape
        differentiable = dtype.is_floating_point or dtype.is_complex
        return cls(
            dtype,
            shape,
            Geometry(dtype, written, strides, offset),
            device=str(device),
            grad=v.get("grad") is True and differentiable,
            rows=rows,
            memory=v.get("memory"),
        )


def is_device(name: Value) -> bool:
    """Whether torch knows a device of this name, here or elsewhere."""
    try:
        torch.device(str(name))
    except RuntimeError:
        return False
    return isinstance(name, str)


def _numbers(node: Value) -> tuple[int, ...] | None:
    if not isinstance(node, Tuple) or not all(type(n) is int and n >= 0 for n in node.v):
        return None
    return tuple(n for n in node.v if isinstance(n, int))


class _Devices:
    """Where tensors go that the twin does not have yet (moments of an optimizer): to the device on
    which the program now has what was saved on theirs. Scalars saved on the CPU stay there: optimizers
    count their steps on it."""

    def __init__(self) -> None:
        self._moved: dict[str, torch.device] = {}
        self._told: set[str] = set()

    def learn(self, saved: str, now: torch.device) -> None:
        self._moved.setdefault(saved, now)

    def tell(self, saved: str, now: torch.device, graft: Graft) -> None:
        """Say where a tensor is now: once for each device, and of every tensor for who compares."""
        if torch.device(saved) == now:
            return
        level = "moved" if saved in self._told else "changed"
        self._told.add(saved)
        graft.note_at("device", level, f"was saved on {saved}; the program's {now} stays.")

    def of(self, saved: _Saved, twin: object) -> torch.device:
        if isinstance(twin, torch.Tensor):
            return twin.device
        if saved.device == "cpu" and not saved.shape:
            return torch.device("cpu")
        if saved.device in self._moved:
            return self._moved[saved.device]
        try:
            device = torch.device(saved.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError):
            return torch.device("cpu")  # a device that this machine or this build of torch lacks
        return device
