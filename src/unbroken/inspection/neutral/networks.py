"""Networks of a checkpoint: their tensors, and which parts of them are a chain of known operations.

A module is described by what it holds: the layers of torch keep their sizes as attributes, which are part of every
checkpoint. What a class of the user's own does in its `forward` stands in the program and in no checkpoint.

Not promised: hooks that change what a layer gives. They are functions, and no checkpoint holds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from unbroken.adapters.neutral.directory import Bits
from unbroken.format.neutral import Network, Step, Tensor
from unbroken.inspection.neutral.cursor import Checkpoint, Cursor
from unbroken.report.arrays import NamedArray, outermost

POLICY, TARGETS = "policy_weights", "target_weights"
_TORCH = "torch.nn.modules."


class NotKnown(Exception):
    """A module is no chain of known operations."""


@dataclass(frozen=True, slots=True)
class Found:
    """A network of a checkpoint with its tensors."""

    network: Network
    tensors: dict[str, NamedArray]
    at: Cursor

    @property
    def bits(self) -> dict[str, Bits]:
        """The tensors as they are written."""
        return {name: Bits(tensor.dtype, tensor.values) for name, tensor in self.tensors.items()}


def networks_of(checkpoint: Checkpoint) -> list[Found]:
    """Return every network that is no part of another one; target networks among them.

    Raises:
        ConfigError: the checkpoint holds a part of a tensor only.
        CorruptObject: it contradicts itself.
    """
    modules: dict[str, dict[str, NamedArray]] = {}
    for component in (POLICY, TARGETS):
        if component in checkpoint.snapshot.components:
            for place, tensors in checkpoint.arrays.modules(component).items():
                if outermost(place)[0] not in modules:
                    modules[place] = tensors
    modules = {place: tensors for place, tensors in modules.items() if not _is_other(tensors, modules)}
    names = _names(list(modules))
    found: list[Found] = []
    for place, tensors in modules.items():
        at = checkpoint.root(place)
        known = {name: tensor for name, tensor in tensors.items() if tensor.dtype}
        network = Network(
            name=names[place],
            place=place,
            class_=at.cls,
            file=f"weights/{names[place]}.safetensors",
            tensors={
                name: Tensor(dtype=tensor.dtype, shape=list(tensor.values.shape))
                for name, tensor in known.items()
            },
            chains=dict(_chains(at, "", known)),
        )
        found.append(Found(network, known, at))
    return found


def _is_other(tensors: dict[str, NamedArray], modules: dict[str, dict[str, NamedArray]]) -> bool:
    """Whether all of a module's tensors are a larger one's, which stands elsewhere in the program."""
    mine = _memory(tensors)
    return any(mine < _memory(other) for other in modules.values())


def _memory(tensors: dict[str, NamedArray]) -> set[tuple[int, int]]:
    return {
        (tensor.values.__array_interface__["data"][0], tensor.values.nbytes) for tensor in tensors.values()
    }


def _names(places: list[str]) -> dict[str, str]:
    """Give each place the name of its last key; the whole of it where two would be called the same."""
    last = {place: _name(place.rpartition("/")[2]) for place in places}
    whole = {place: _name(place) for place in places}
    taken: set[str] = set()
    found: dict[str, str] = {}
    for place in places:
        name = last[place] if [*last.values()].count(last[place]) == 1 else whole[place]
        while name in taken:
            name += "_"
        taken.add(name)
        found[place] = name
    return found


def _name(text: str) -> str:
    # Two places may differ only in a letter that no file name has; `_names` keeps them apart.
    return re.sub(r"[^A-Za-z0-9_-]+", ".", text.replace("/_modules/", "/")).strip(".") or "network"


def _chains(at: Cursor, path: str, tensors: dict[str, NamedArray]) -> Iterator[tuple[str, list[Step]]]:
    """Yield each largest part of a network that is a chain."""
    try:
        steps = steps_of(at, path)
    except NotKnown:
        for name, inner in at.attr("_modules").items():
            yield from _chains(inner, f"{path}.{name}" if path else name, tensors)
        return
    if any(step.weight or step.mean for step in steps) and _there(steps, tensors):
        yield path, steps


def _there(steps: list[Step], tensors: dict[str, NamedArray]) -> bool:
    names = {name for step in steps for name in (step.weight, step.bias, step.mean, step.var) if name}
    return names <= tensors.keys()


def steps_of(at: Cursor, path: str) -> list[Step]:
    """Return the operations of a module at `path` of its network, which is a layer of torch or a Sequential of them.

    Raises:
        NotKnown: it is anything else.
    """
    cls = at.cls
    if not cls.startswith(_TORCH):
        raise NotKnown(f"{path or 'it'} is a {cls or 'missing module'}")
    name = cls.rpartition(":")[2]
    if name == "Sequential":
        found: list[Step] = []
        for key, inner in at.attr("_modules").items():
            found += steps_of(inner, f"{path}.{key}" if path else key)
        return found
    make = _LAYERS.get(name)
    if make is None:
        raise NotKnown(f"{path or 'it'} is a {name}")
    return make(at, f"{path}." if path else "")


def _tensor(at: Cursor, prefix: str, name: str, group: str = "_parameters") -> str | None:
    return prefix + name if at.attr(group, name) else None


def _linear(at: Cursor, prefix: str) -> list[Step]:
    return [Step(op="linear", weight=f"{prefix}weight", bias=_tensor(at, prefix, "bias"))]


def _conv2d(at: Cursor, prefix: str) -> list[Step]:
    pairs: dict[str, Any] = {}
    for name in ("stride", "padding", "dilation"):
        pair = at.attr(name).plain()
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(n) is int for n in pair):
            raise NotKnown(f"{prefix}{name} is {pair!r}")
        pairs[name] = pair
    if at.attr("padding_mode").plain() != "zeros":
        raise NotKnown(f"{prefix}padding_mode is not zeros")
    bias, groups = _tensor(at, prefix, "bias"), int(at.attr("groups").number(1) or 1)
    return [Step(op="conv2d", weight=f"{prefix}weight", bias=bias, groups=groups, **pairs)]


def _layer_norm(at: Cursor, prefix: str) -> list[Step]:
    shape = at.attr("normalized_shape").plain()
    return [
        Step(
            op="layer_norm", shape=shape, epsilon=at.attr("eps").number(),
            weight=_tensor(at, prefix, "weight"), bias=_tensor(at, prefix, "bias"),
        )
    ]  # fmt: skip


def _batch_norm(at: Cursor, prefix: str) -> list[Step]:
    mean, var = (_tensor(at, prefix, name, "_buffers") for name in ("running_mean", "running_var"))
    if mean is None or var is None:
        raise NotKnown(f"{prefix}running_mean is not kept")
    return [
        Step(
            op="batch_norm", mean=mean, var=var, epsilon=at.attr("eps").number(),
            weight=_tensor(at, prefix, "weight"), bias=_tensor(at, prefix, "bias"),
        )
    ]  # fmt: skip


def _flatten(at: Cursor, prefix: str) -> list[Step]:
    if (at.attr("start_dim").plain(), at.attr("end_dim").plain()) != (1, -1):
        raise NotKnown(f"{prefix}: it flattens other dimensions")
    return [Step(op="flatten")]


def _softplus(at: Cursor) -> list[Step]:
    return [Step(op="softplus", alpha=at.attr("beta").number(), high=at.attr("threshold").number())]


_Make = Callable[[Cursor, str], list[Step]]
_LAYERS: dict[str, _Make] = {
    "Linear": _linear,
    "Conv2d": _conv2d,
    "LayerNorm": _layer_norm,
    "BatchNorm1d": _batch_norm,
    "BatchNorm2d": _batch_norm,
    "Flatten": _flatten,
    "Identity": lambda at, prefix: [],
    "Dropout": lambda at, prefix: [],  # acting does without
    "ReLU": lambda at, prefix: [Step(op="relu")],
    "Tanh": lambda at, prefix: [Step(op="tanh")],
    "Sigmoid": lambda at, prefix: [Step(op="sigmoid")],
    "SiLU": lambda at, prefix: [Step(op="silu")],
    "ELU": lambda at, prefix: [Step(op="elu", alpha=at.attr("alpha").number())],
    "LeakyReLU": lambda at, prefix: [Step(op="leaky_relu", alpha=at.attr("negative_slope").number())],
    "GELU": lambda at, prefix: [Step(op="gelu", approximate=str(at.attr("approximate").plain()))],
    "Hardtanh": lambda at, prefix: [
        Step(op="hardtanh", low=at.attr("min_val").number(), high=at.attr("max_val").number())
    ],
    "Softplus": lambda at, prefix: _softplus(at),
}
