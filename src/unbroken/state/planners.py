"""How each word of a document is laid over the twin's object at its place.

Every planner returns the object to use and registers the writes that bring it to the saved state; none
touches anything. A planner claims the twin's object before it plans what is inside, so that references
from inside find it.
"""

from __future__ import annotations

import math
import pickle
import struct
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, cast

import numpy as np

from unbroken.errors import CorruptObject
from unbroken.state import dtypes
from unbroken.state.graft import Graft, same
from unbroken.state.lookup import Kind
from unbroken.state.nodes import (
    PLAIN,
    Array,
    Bytes,
    Class,
    Deque,
    Dict,
    External,
    Float,
    Function,
    Int,
    List,
    Method,
    Node,
    Object,
    ObjectArray,
    Opaque,
    Packed,
    Partial,
    Scope,
    Set,
    Tuple,
    Value,
    View,
    class_name,
)
from unbroken.state.walk import code_hash, function_name, memory_of
from unbroken.types import MISSING

COMPARE_UP_TO = 1 << 20
"""Arrays up to so many bytes are compared first, so that what is equal (and perhaps shared by the
whole program) is not written to."""


def _use(graft: Graft, node: Node, twin: object, *, fits: bool) -> Any:
    """Return the twin's object if it fits and is free, else MISSING; registers it."""
    if fits and graft.claim(twin):
        graft._objects[id(node)] = twin
        return twin
    return MISSING


def _new(graft: Graft, node: Node, value: Any) -> Any:
    graft._objects[id(node)] = value
    return value


def _structural(graft: Graft, value: object) -> bool:
    return graft.facts(type(value)).structural


# ---------------------------------------------------------------------- plain values


def _float(graft: Graft, node: Float, twin: object) -> Any:
    if node.v in ("inf", "-inf", "nan"):
        return float(node.v)
    try:
        (value,) = struct.unpack(">d", bytes.fromhex(node.v))
    except (ValueError, struct.error):
        return graft.refuse(f"{node.v[:40]!r} is no float.", twin)
    return value if math.isnan(value) else graft.refuse(f"{node.v[:40]!r} is no float.", twin)


def _int(graft: Graft, node: Int, twin: object) -> Any:
    try:
        return int(node.v, 16)
    except ValueError:
        return graft.refuse(f"{node.v[:40]!r} is no integer.", twin)


def _bytes(graft: Graft, node: Bytes, twin: object) -> Any:
    data = graft.bytes_of(node.b, node.v).tobytes()
    if not node.mutable:
        return _new(graft, node, twin if type(twin) is bytes and twin == data else data)
    own = _use(graft, node, twin, fits=type(twin) is bytearray)
    if own is MISSING:
        return _new(graft, node, bytearray(data))
    if own != data:
        graft.write(own.__setitem__, slice(None), data)
    return own


# ---------------------------------------------------------------------- containers


def _items(graft: Graft, values: list[Value], had: list[Any]) -> list[Any]:
    return [graft.value(str(i), value, had[i] if i < len(had) else MISSING) for i, value in enumerate(values)]


def _subclass(graft: Graft, name: str, twin: object, default: type) -> Any:
    if not name:
        return default
    found = graft.buildable_class(name, twin)
    return found if found is not None and issubclass(found, default) else default


def _list(graft: Graft, node: List, twin: object) -> Any:
    fits = class_name(type(twin)) == node.c if node.c else type(twin) is list
    own = _use(graft, node, twin, fits=fits)
    had = list(own) if own is not MISSING else []
    if own is MISSING:
        cls = _subclass(graft, node.c, twin, list)
        result = _new(graft, node, cls.__new__(cls))
    else:
        result = own
        if len(had) != len(node.v) and any(_structural(graft, item) for item in had):
            graft.error(f"{len(node.v)} objects were saved, the program has {len(had)}.")
    items = _items(graft, node.v, had)
    if node.c:
        _attributes(graft, node.a, result, mine=own is not MISSING)
    if len(items) != len(had) or not all(map(same, items, had)):
        graft.write(list.__setitem__, result, slice(None), items)
    return result


def _packed(graft: Graft, node: Packed, twin: object) -> Any:
    data = graft.bytes_of(node.b, node.data)
    if node.t not in ("f", "i") or data.nbytes != 8 * node.n:
        raise CorruptObject(f"{graft.place} does not hold the {node.n} numbers that it names.")
    items = data.view("<f8" if node.t == "f" else "<i8").tolist()
    own = _use(graft, node, twin, fits=type(twin) is list)
    if own is MISSING:
        return _new(graft, node, items)
    graft.write(list.__setitem__, own, slice(None), items)
    return own


def _tuple(graft: Graft, node: Tuple, twin: object) -> Any:
    had = list(twin) if isinstance(twin, tuple) and len(twin) == len(node.v) else []
    items = _items(graft, node.v, had)
    name = node.c or "builtins:tuple"
    if had and class_name(type(twin)) == name and all(map(same, items, had)):
        return twin
    if not node.c:
        return tuple(items)
    same_class = class_name(type(twin)) == name
    found: Any = type(twin) if same_class else graft.buildable_class(node.c, twin)
    if found is None or not issubclass(found, tuple):
        return tuple(items)
    return tuple.__new__(found, items)


def _set(graft: Graft, node: Set, twin: object) -> Any:
    items = [graft.value(str(i), value) for i, value in enumerate(node.v)]
    try:
        if node.frozen:
            cls = _subclass(graft, node.c, twin, frozenset)
            made: Any = cls.__new__(cls, items)
            return _new(graft, node, twin if type(twin) is cls and twin == made else made)
        fits = class_name(type(twin)) == node.c if node.c else type(twin) is set
        own = _use(graft, node, twin, fits=fits)
        if own is MISSING:
            cls = _subclass(graft, node.c, twin, set)
            result: Any = _new(graft, node, cls.__new__(cls))
            result.update(items)
            return result
        graft.write(_refill_set, own, items)
        return own
    except TypeError as error:  # unhashable member: the document lies
        raise CorruptObject(f"{graft.place} holds a set of {error}.") from error


def _refill_set(target: set[Any], items: list[Any]) -> None:
    if target != set(items):
        target.clear()
        target.update(items)


def _deque(graft: Graft, node: Deque, twin: object) -> Any:
    fits = isinstance(twin, deque) and twin.maxlen == node.m
    fits = fits and (class_name(type(twin)) == node.c if node.c else type(twin) is deque)
    own = _use(graft, node, twin, fits=fits)
    had = list(own) if own is not MISSING else []
    if own is MISSING:
        cls = _subclass(graft, node.c, twin, deque)
        own = _new(graft, node, cls.__new__(cls))
        deque.__init__(own, (), node.m)
    items = _items(graft, node.v, had)
    if len(items) != len(had) or not all(map(same, items, had)):
        graft.write(_refill_deque, own, items)
    return own


def _refill_deque(target: deque[Any], items: list[Any]) -> None:
    target.clear()
    target.extend(items)


_DICTS: dict[str, type] = {
    "": dict,
    "collections:OrderedDict": OrderedDict,
    "collections:defaultdict": defaultdict,
}


def _dict(graft: Graft, node: Dict, twin: object) -> Any:
    fits = isinstance(twin, dict) and class_name(type(twin)) == (node.c or "builtins:dict")
    own = _use(graft, node, twin, fits=fits)
    had: dict[Any, Any] = dict(own) if own is not MISSING else {}
    if own is MISSING:
        cls: Any = _DICTS.get(node.c) or _subclass(graft, node.c, twin, dict)
        result: Any = _new(graft, node, cls.__new__(cls))
        if isinstance(result, defaultdict):
            result.default_factory = graft.value("default_factory", node.f)
    else:
        result = own
    pairs: list[tuple[Any, Any]] = []
    for key, value in (node.v or {}).items():
        pairs.append((key, graft.value(key, value, had.get(key, MISSING))))
    for i, (key_node, value) in enumerate(node.kv or ()):
        key = graft.value(f"#{i}.key", key_node)
        try:
            old = had.get(key, MISSING)
        except TypeError as error:
            raise CorruptObject(f"{graft.place} has a key that cannot be one: {error}.") from error
        pairs.append((key, graft.value(f"#{i}", value, old)))
    if node.c:
        _attributes(graft, node.a, result, mine=own is not MISSING)
    keys = {key for key, _ in pairs}
    extra = [key for key, value in had.items() if _structural(graft, value) and key not in keys]
    if extra:
        graft.error(f"the program has more here: {', '.join(map(repr, extra))}.")
    if list(had) != [key for key, _ in pairs] or not all(same(v, had[k]) for k, v in pairs):
        graft.write(_refill_dict, result, pairs)
    return result


def _refill_dict(target: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> None:
    # An OrderedDict keeps its order in a list of its own, which dict's methods would leave empty.
    # Other subclasses may do anything in __setitem__, so they are filled as the dicts they are.
    cls: Any = OrderedDict if isinstance(target, OrderedDict) else dict
    cls.clear(target)
    for key, value in pairs:
        cls.__setitem__(target, key, value)


# ---------------------------------------------------------------------- numpy arrays


def _content(graft: Graft, node: Array) -> np.ndarray[Any, Any]:
    dtype = dtypes.parse(node.d)
    shape = (node.rows, *node.s[1:]) if node.rows >= 0 else node.s
    order: Literal["C", "F"] = "F" if node.o == "F" and node.rows < 0 else "C"
    data = graft.bytes_of(node.b, node.data)
    if min(shape, default=0) < 0 or data.nbytes != dtype.itemsize * math.prod(shape):
        raise CorruptObject(f"{graft.place} holds {data.nbytes} bytes for {node.d}{list(shape)}.")
    if data.nbytes == 0:
        return np.empty(shape, dtype=dtype, order=order)
    return data.view(dtype).reshape(shape, order=order)


def _array(graft: Graft, node: Array, twin: object) -> Any:
    content = _content(graft, node)
    fits = (
        isinstance(twin, np.ndarray)
        and twin.dtype == content.dtype
        and twin.shape == tuple(node.s)
        and twin.flags.writeable
        and not isinstance(twin.base, np.ndarray)
    )
    own = _use(graft, node, twin, fits=fits)
    if own is MISSING:
        if isinstance(twin, np.ndarray) and (twin.shape != tuple(node.s) or twin.dtype != content.dtype):
            graft.note("replaced", f"{twin.dtype}{list(twin.shape)} by {content.dtype}{list(node.s)}.")
        return _new(graft, node, _fresh_array(node, content))
    target = own[: node.rows] if node.rows >= 0 else own
    if content.nbytes > COMPARE_UP_TO or target.tobytes() != content.tobytes():
        graft.write(_fill_array, target, content)
    return own


def _fresh_array(node: Array, content: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if node.rows < 0:
        return np.array(content, order="F" if node.o == "F" else "C", copy=True)
    whole = np.zeros(node.s, content.dtype, order="F" if node.o == "F" else "C")
    whole[: node.rows] = content
    return whole


def _fill_array(target: np.ndarray[Any, Any], content: np.ndarray[Any, Any]) -> None:
    target[...] = content


def _objects(graft: Graft, node: ObjectArray, twin: object) -> Any:
    shape = tuple(node.s)
    expected = math.prod((node.rows, *shape[1:])) if node.rows >= 0 else math.prod(shape)
    if len(node.v) != expected:
        raise CorruptObject(f"{graft.place} holds {len(node.v)} objects for {list(shape)}.")
    fits = (
        isinstance(twin, np.ndarray)
        and twin.dtype == np.dtype(object)
        and twin.shape == shape
        and not isinstance(twin.base, np.ndarray)
    )
    own = _use(graft, node, twin, fits=fits)
    result = _new(graft, node, np.empty(shape, object)) if own is MISSING else own
    target = result[: node.rows] if node.rows >= 0 else result
    had = target.reshape(-1).tolist() if own is not MISSING else []
    items = _items(graft, node.v, had)
    if own is MISSING or not all(map(same, items, had)):
        graft.write(_fill_objects, target, items)
    return result


def _fill_objects(target: np.ndarray[Any, Any], items: list[Any]) -> None:
    flat = np.empty(len(items), object)
    for i, item in enumerate(items):  # one by one: numpy would spread a sequence over several places
        flat[i] = item
    target[...] = flat.reshape(target.shape)


def _view(graft: Graft, node: View, twin: object) -> Any:
    dtype = dtypes.parse(node.d)
    is_view = isinstance(twin, np.ndarray) and isinstance(twin.base, np.ndarray)
    twin_base = memory_of(cast("np.ndarray[Any, Any]", twin)) if is_view else MISSING
    base = graft.value("<base>", node.of, twin_base)
    if not isinstance(base, np.ndarray) or base.dtype.hasobject:
        return graft.refuse("is a view of something that is no array.", twin)
    if is_view and twin_base is base and _same_layout(cast("np.ndarray[Any, Any]", twin), base, node, dtype):
        return _new(graft, node, twin)
    low = node.off + sum(min(0, (n - 1) * st) for n, st in zip(node.s, node.st, strict=True))
    high = node.off + sum(max(0, (n - 1) * st) for n, st in zip(node.s, node.st, strict=True))
    if 0 in node.s or min(node.s, default=1) < 0:
        return _new(graft, node, np.empty(tuple(node.s), dtype))
    if low < 0 or high + dtype.itemsize > base.nbytes:
        raise CorruptObject(f"{graft.place} is a view that leaves its array.")
    raw = (base if base.flags.c_contiguous else base.T).reshape(-1).view(np.uint8)
    return _new(
        graft,
        node,
        np.ndarray(tuple(node.s), dtype, buffer=raw.data, offset=node.off, strides=tuple(node.st)),
    )


def _same_layout(
    twin: np.ndarray[Any, Any], base: np.ndarray[Any, Any], node: View, dtype: np.dtype[Any]
) -> bool:
    offset = twin.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return (
        twin.shape == tuple(node.s)
        and twin.strides == tuple(node.st)
        and twin.dtype == dtype
        and offset == node.off
    )


# ---------------------------------------------------------------------- objects


def _object(graft: Graft, node: Object, twin: object) -> Any:
    own = _use(graft, node, twin, fits=twin is not MISSING and class_name(type(twin)) == node.c)
    mine = own is not MISSING
    if not mine:
        if _structural(graft, twin) or callable(twin):
            return _not_this(graft, node, node.c, twin)
        cls = graft.buildable_class(node.c, twin)
        if cls is None:
            return _new(graft, node, None if twin is MISSING else twin)
        try:
            own = _new(graft, node, object.__new__(cls))
        except TypeError:  # a class written in C that makes its objects itself
            return _new(graft, node, graft.refuse(f"{node.c} cannot be built without its constructor.", twin))
    captor = next((c for rule in graft.policy.captors if (c := rule(own)) is not None), None)
    graft.owners.append(type(own))
    try:
        only = captor.attributes(own) if captor is not None else None
        _attributes(graft, node.a, own, mine=mine, only=only)
        for name, value in node.s.items():
            old = getattr(own, name, MISSING) if mine else MISSING
            new = graft.value(name, value, old)
            if not same(new, old):
                graft.write(object.__setattr__, own, name, new)
        if node.x:
            if captor is None:
                graft.error(f"{node.c} was saved with {', '.join(node.x)}, which nothing here restores.")
            else:
                captor.plan(node.x, own, graft)
    finally:
        graft.owners.pop()
    return own


def _not_this(graft: Graft, node: Node, saved: str, twin: object) -> Any:
    """Another kind of thing stands here. What the program calls is the program's: it stays."""
    if callable(twin) and not _structural(graft, twin):
        graft.note("changed", f"{saved} was saved; the program's {class_name(type(twin))} stays.")
    else:
        graft.error(f"{saved} was saved and the program has {class_name(type(twin))} here.")
    return _new(graft, node, twin)


def _attributes(
    graft: Graft,
    saved: Mapping[str, Value],
    owner: Any,
    *,
    mine: bool,
    only: frozenset[str] | None = None,
) -> None:
    # Written into __dict__ and not through setattr: properties and nn.Module would act on it.
    attributes: dict[str, Any] | None = getattr(owner, "__dict__", None)
    if attributes is None:
        if saved:
            graft.error(f"{class_name(type(owner))} holds no attributes.")
        return
    facts = graft.facts(type(owner))
    for name, value in saved.items():
        if name in facts.skip:
            graft.error(f"the attribute {name} belongs to the process and cannot come from a checkpoint.")
            continue
        old = attributes.get(name, MISSING) if mine else MISSING
        new = graft.value(name, value, old)
        if not same(new, old):
            graft.write(attributes.__setitem__, name, new)
    if not mine:
        return
    for name in [n for n in attributes if n not in saved and n not in facts.skip]:
        if only is not None and name not in only:
            continue
        if graft.facts(type(attributes[name])).kind is Kind.EXTERNAL or graft.keeps(name):
            continue
        graft.note_at(name, "removed", "is gone, as in the saved state.")
        graft.write(attributes.pop, name)


# ---------------------------------------------------------------------- what the program calls


def _function(graft: Graft, node: Function, twin: object) -> Any:
    if isinstance(twin, types.FunctionType) and function_name(twin) == node.q:
        _new(graft, node, twin)
        _closure(graft, node, twin)
        return twin
    if callable(twin) and not isinstance(twin, type) and function_name(twin) == node.q:
        _new(graft, node, twin)
        if node.of is not None:
            owner = graft.value("__self__", node.of, getattr(twin, "__self__", MISSING))
            if owner is not getattr(twin, "__self__", MISSING):
                return _new(graft, node, getattr(owner, node.q.rpartition(".")[2], twin))
        return twin
    known = graft.callables.get(node.q) or _own_module(graft, node.q)
    if callable(known) and not isinstance(known, type):
        return _new(graft, node, known)
    if twin is MISSING or not callable(twin):
        graft.error(f"the function {node.q} was saved; it is none that the program holds.")
        return _new(graft, node, None if twin is MISSING else twin)
    return _not_this(graft, node, node.q, twin)


def _own_module(graft: Graft, name: str) -> object:
    """Find a plain function defined in the very module of the class that will hold it."""
    module, _, attribute = name.partition(":")
    if not graft.owners or graft.owners[-1].__module__ != module:
        return None
    found = getattr(sys.modules.get(module), "__dict__", {}).get(attribute)
    return found if isinstance(found, types.FunctionType) and found.__module__ == module else None


def _closure(graft: Graft, node: Function, twin: types.FunctionType) -> None:
    if node.h != code_hash(twin.__code__):
        graft.note("changed", f"{node.q} has other code; the program's stays.")
        return
    for name, cell in zip(twin.__code__.co_freevars, twin.__closure__ or (), strict=True):
        if name not in node.cl:
            continue
        try:
            old = cell.cell_contents
        except ValueError:
            old = MISSING
        new = graft.value(f"<{name}>", node.cl[name], old)
        if not same(new, old):
            graft.write(setattr, cell, "cell_contents", new)


def _method(graft: Graft, node: Method, twin: object) -> Any:
    owner = graft.value("__self__", node.of, getattr(twin, "__self__", MISSING))
    if isinstance(twin, types.MethodType) and twin.__self__ is owner and twin.__func__.__name__ == node.n:
        return twin
    if f"{class_name(type(owner))}.{node.n}" not in graft.callables:
        return graft.refuse(f"the method {node.n} was saved; it is none that the program holds.", twin)
    return types.MethodType(getattr(type(owner), node.n), owner)


def _partial(graft: Graft, node: Partial, twin: object) -> Any:
    own = isinstance(twin, partial)
    old: Any = twin
    function = graft.value("func", node.f, old.func if own else MISSING)
    args = graft.value("args", node.a, old.args if own else MISSING)
    keywords = graft.value("keywords", node.k, old.keywords if own else MISSING)
    if not callable(function) or not isinstance(args, tuple) or not isinstance(keywords, dict):
        return graft.refuse("is a partial of something that cannot be called.", twin)
    if own and old.func is function and len(args) == len(old.args) and all(map(same, args, old.args)):
        return _new(graft, node, twin)
    return _new(graft, node, partial(function, *args, **keywords))


_VALUE_TYPES: dict[str, type] = {
    class_name(t): t
    for t in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, deque)
}
"""Classes that a document may name although the program does not hold them: making one does nothing."""


def _class(graft: Graft, node: Class, twin: object) -> Any:
    if isinstance(twin, types.ModuleType) and f"{twin.__name__}:" == node.q:
        return twin
    if isinstance(twin, type) and class_name(twin) == node.q:
        return twin
    found = _VALUE_TYPES.get(node.q) or graft.callables.get(node.q)
    if found is None or not isinstance(found, (type, types.ModuleType)):
        return graft.refuse(f"the class {node.q} was saved; it is none that the program holds.", twin)
    return found


def _external(graft: Graft, node: External, twin: object) -> Any:
    if twin is MISSING or (type(twin) in PLAIN and twin is not None):
        graft.note("lost", f"{node.c} lives outside of checkpoints and has no counterpart here.")
        return _new(graft, node, None)
    return _new(graft, node, twin)


def _opaque(graft: Graft, node: Opaque, twin: object) -> Any:
    if not graft.trusted:
        graft.note("untrusted", f"{node.c} is pickled, and the checkpoint is not trusted.")
        return _new(graft, node, None if twin is MISSING else twin)
    data = graft.bytes_of(node.b, node.data).tobytes()
    return _new(graft, node, pickle.loads(data))  # noqa: S301 - trusted: signed by us, or by the caller's word


def _scope(graft: Graft, _: Scope, twin: object) -> Any:
    return graft.refuse("holds the state of another process, which nothing here restores.", twin)


PLANNERS: dict[type, Callable[[Graft, Any, object], Any]] = {
    Float: _float,
    Int: _int,
    Bytes: _bytes,
    List: _list,
    Packed: _packed,
    Tuple: _tuple,
    Set: _set,
    Deque: _deque,
    Dict: _dict,
    Array: _array,
    ObjectArray: _objects,
    View: _view,
    Object: _object,
    Function: _function,
    Method: _method,
    Partial: _partial,
    Class: _class,
    External: _external,
    Opaque: _opaque,
    Scope: _scope,
}
"""By node type; coded values, references and links are planned by the graft itself."""
