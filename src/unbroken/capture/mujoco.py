"""MuJoCo: the data of a simulation, and the numbers of its model, in place and bit for bit.

MuJoCo's own state vectors are not enough. The integration state leaves out what a step computes last, and
environments read exactly that before their next step (Ant's velocity reward reads `xpos`, Humanoid's
`xipos`, both one integration behind `qpos`); recomputing it with `mj_forward` gives other values. So every
array that belongs to the data is written beside the integration state, and nothing is computed on restore.
The model is compiled by the program; its numbers are written too, since domain randomisation changes them.

Not captured: arrays whose length follows the number of contacts and constraints (`efc_*`, `contact`),
and which body belongs to which island of them: they lie in memory that MuJoCo allots in each step.
MuJoCo computes them anew in each step; an environment that reads them *before* its step sees the twin's.
"""

from __future__ import annotations

import hashlib
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unbroken.state import dtypes
from unbroken.state.nodes import Array, Dict, Value
from unbroken.state.policy import Phase, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_SIZES = ("nq", "nv", "na", "nu", "nbody", "njnt", "ngeom", "nsite", "nsensordata", "nmocap", "nuserdata")
_POINTERS = frozenset({"plugin_data"})
_ASSETS = ("tex_", "mesh_", "skin_", "hfield_", "names", "paths", "text_", "bvh_", "oct_", "key_")
"""Model arrays that are large and constant: pictures, meshes, names."""

_ISLANDS = frozenset({"dof_island", "map_dof2idof", "map_idof2dof", "map_itree2tree", "tree_island"})
"""Data arrays of a fixed size whose memory is allotted anew in each step: what is written there is lost."""

_field_names: dict[type, tuple[str, ...]] = {}
_data_arrays: dict[tuple[int, ...], tuple[str, ...]] = {}


def _library() -> Any:
    return importlib.import_module("mujoco")  # `import mujoco` reads like this module's own name


def _sizes(model: Any) -> dict[str, int]:
    return {name: int(getattr(model, name, 0)) for name in _SIZES}


def _fields(owner: Any) -> tuple[str, ...]:
    cls = type(owner)
    if cls not in _field_names:
        _field_names[cls] = tuple(n for n in dir(cls) if not n.startswith("_") and n not in _POINTERS)
    return _field_names[cls]


def _arrays(owner: Any) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name in _fields(owner):
        value = getattr(owner, name, None)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "fiub":
            found[name] = value
    return found


def _names_of_data(data: Any) -> tuple[str, ...]:
    """Return the arrays of a fixed size: those that a data without any constraint has as well."""
    mujoco = _library()
    key = (int(getattr(data.model, "signature", 0)), *_sizes(data.model).values())
    if key not in _data_arrays:
        fresh = _arrays(mujoco.MjData(data.model))
        _data_arrays[key] = tuple(sorted(fresh.keys() - _ISLANDS))
    return _data_arrays[key]


def _integration(data: Any) -> NDArray[np.float64]:
    mujoco = _library()
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(data.model, kind))
    mujoco.mj_getState(data.model, data, state, kind)
    return state


def _node(array: NDArray[Any], walk: Walk) -> Array:
    b, inline = walk.pack(array)
    return Array(d=dtypes.name(array.dtype), s=array.shape, b=b, data=inline)


def _read(node: Value, graft: Graft) -> NDArray[Any] | None:
    if not isinstance(node, Array):
        return None
    dtype, blob = dtypes.parse(node.d), graft.bytes_of(node.b, node.data)
    if blob.nbytes != dtype.itemsize * int(np.prod(node.s, dtype=np.int64)):
        return None
    return blob.view(dtype).reshape(node.s)


def _copy(target: NDArray[Any], source: NDArray[Any]) -> None:
    target[...] = source


class DataCodec:
    """`MjData`: the integration state and every array of fixed size."""

    name = "mujoco.data"
    mutable = True

    def encode(self, value: Any, walk: Walk) -> Value:
        found: dict[str, Value] = dict(_sizes(value.model))
        found["integration"] = _node(_integration(value), walk)
        for name in _names_of_data(value):
            found[f"d.{name}"] = _node(getattr(value, name), walk)
        return Dict(v=found)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        mujoco = _library()
        if not isinstance(payload, Dict) or payload.v is None or not isinstance(twin, mujoco.MjData):
            return graft.refuse("MuJoCo data was saved and the program has none here.", twin)
        if not graft.claim(twin):
            return graft.refuse("one MuJoCo simulation stands where two were saved.", twin)
        graft.register(twin)
        data: Any = twin
        for name, size in _sizes(data.model).items():
            if payload.v.get(name) != size:
                graft.error(f"the MuJoCo model has {name}={size}, the saved one {payload.v.get(name)}.")
                return twin
        state = _read(payload.v.get("integration"), graft)
        if state is None or state.shape != _integration(data).shape:
            return graft.refuse("the integration state has another size: another version of MuJoCo?", twin)
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        graft.write(
            partial(mujoco.mj_setState, data.model, data, state.astype(np.float64), kind), phase=Phase.WORLD
        )
        for key, node in payload.v.items():
            if not key.startswith("d."):
                continue
            target, saved = getattr(data, key[2:], None), _read(node, graft)
            if saved is None or not isinstance(target, np.ndarray) or target.shape != saved.shape:
                graft.error(f"{key[2:]} does not fit the data of this MuJoCo.")
            else:
                graft.write(_copy, target, saved, phase=Phase.WORLD)
        return twin


class ModelCodec:
    """`MjModel`: compiled by the program, its numbers brought to those of the run."""

    name = "mujoco.model"
    mutable = True

    @staticmethod
    def _parts(model: Any) -> dict[str, NDArray[Any]]:
        parts = {k: v for k, v in _arrays(model).items() if not k.startswith(_ASSETS)}
        parts.update({f"opt.{k}": v for k, v in _arrays(model.opt).items()})
        return parts

    @staticmethod
    def _layout(parts: dict[str, NDArray[Any]]) -> str:
        text = ";".join(f"{name}:{part.dtype.str}:{part.shape}" for name, part in sorted(parts.items()))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @staticmethod
    def _options(model: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in _fields(model.opt):
            value = getattr(model.opt, name, None)
            if isinstance(value, (int, float)):
                found[name] = value
        return found

    def encode(self, value: Any, walk: Walk) -> Value:
        parts = self._parts(value)
        # One blob: unchanged from save to save and equal for equal environments, so it is stored once.
        flat = np.concatenate([part.reshape(-1).view(np.uint8) for _, part in sorted(parts.items())])
        options: dict[str, Value] = {k: walk.child(k, v) for k, v in self._options(value).items()}
        return Dict(
            v={
                **_sizes(value),
                "layout": self._layout(parts),
                "numbers": _node(flat, walk),
                "options": Dict(v=options),
            }
        )

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        mujoco = _library()
        if not isinstance(payload, Dict) or payload.v is None or not isinstance(twin, mujoco.MjModel):
            return graft.refuse("a MuJoCo model was saved and the program has none here.", twin)
        if not graft.claim(twin):
            return graft.refuse("one MuJoCo model stands where two were saved.", twin)
        graft.register(twin)
        parts = self._parts(twin)
        numbers = _read(payload.v.get("numbers"), graft)
        if payload.v.get("layout") != self._layout(parts) or numbers is None:
            sizes = _sizes(twin)
            other = [f"{k}={v} (saved {payload.v.get(k)})" for k, v in sizes.items() if payload.v.get(k) != v]
            return graft.refuse(
                f"the MuJoCo model is another one: {', '.join(other) or 'other arrays'}.", twin
            )
        offset = 0
        for _, part in sorted(parts.items()):
            saved = numbers[offset : offset + part.nbytes].view(part.dtype).reshape(part.shape)
            offset += part.nbytes
            if saved.tobytes() != part.tobytes():
                graft.write(_copy, part, saved, phase=Phase.WORLD)
        self._plan_options(payload.v.get("options"), twin, graft)
        return twin

    def _plan_options(self, options: Value, model: Any, graft: Graft) -> None:
        if not isinstance(options, Dict) or options.v is None:
            return
        own = self._options(model)
        for name, node in options.v.items():
            saved = graft.value(name, node)
            if name in own and isinstance(saved, (int, float)) and saved != own[name]:
                graft.write(setattr, model.opt, name, saved, phase=Phase.WORLD)


POLICY = Policy(
    codecs={"mujoco._structs:MjData": DataCodec(), "mujoco._structs:MjModel": ModelCodec()},
    external=frozenset({"mujoco", "gymnasium.envs.mujoco.mujoco_rendering"}),
)
