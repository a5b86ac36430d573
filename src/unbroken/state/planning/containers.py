"""Lists, tuples, sets, deques and dicts: the twin's own are refilled, new ones are built."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from unbroken.errors import CorruptObject
from unbroken.state.contents import items_of, members_of
from unbroken.state.nodes import PLAIN, Deque, Dict, List, Packed, Set, Tuple, Value, class_name, same
from unbroken.state.planning.bindings import plan_bound
from unbroken.state.planning.objects import plan_attributes
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft


def plan_items(graft: Graft, values: list[Value], had: list[Any]) -> list[Any]:
    items = [
        graft.value(str(i), value, had[i] if i < len(had) else MISSING) for i, value in enumerate(values)
    ]
    if all(item is not MISSING for item in items):
        return items
    # What is left out has no place of its own; among others it keeps theirs.
    return (
        [None if item is MISSING else item for item in items] if any(i is not MISSING for i in items) else []
    )


def _subclass(graft: Graft, name: str, twin: object, default: type) -> Any:
    if not name:
        return default
    found = graft.buildable_class(name, twin)
    return found if found is not None and issubclass(found, default) else default


def plan_list(graft: Graft, node: List, twin: object) -> Any:
    fits = class_name(type(twin)) == node.c if node.c else type(twin) is list
    own = graft.use(node, twin, fits=fits)
    had = list(members_of(own)) if own is not MISSING else []
    if own is MISSING:
        cls = _subclass(graft, node.c, twin, list)
        result = graft.bind(node, cls.__new__(cls))
    else:
        result = own
        more = node.v[len(had) :]
        longer = bool(more) and all(map(graft.grows, more))
        if (
            not graft.remaking
            and not longer
            and len(had) != len(node.v)
            and any(map(graft.is_structural, had))
        ):
            graft.error(f"{len(node.v)} objects were saved, the program has {len(had)}.")
    items = (plan_bound if graft.remaking else plan_items)(graft, node.v, had)
    if node.c:
        plan_attributes(graft, node.a, result, mine=own is not MISSING)
    if len(items) != len(had) or not all(map(same, items, had)):
        graft.write(list.__setitem__, result, slice(None), items)
    return result


def plan_packed(graft: Graft, node: Packed, twin: object) -> Any:
    data = graft.bytes_of(node.b, node.data)
    if node.t not in ("f", "i") or data.nbytes != 8 * node.n:
        raise CorruptObject(f"{graft.place} does not hold the {node.n} numbers that it names.")
    items = data.view("<f8" if node.t == "f" else "<i8").tolist()
    own = graft.use(node, twin, fits=type(twin) is list)
    if own is MISSING:
        return graft.bind(node, items)
    graft.write(list.__setitem__, own, slice(None), items)
    return own


def plan_tuple(graft: Graft, node: Tuple, twin: object) -> Any:
    had = list(members_of(twin)) if isinstance(twin, tuple) else []
    had = had if len(had) == len(node.v) else []
    items = plan_items(graft, node.v, had)
    name = node.c or "builtins:tuple"
    if had and class_name(type(twin)) == name and all(map(same, items, had)):
        plan_attributes(graft, node.a, twin, mine=True)
        return twin
    if not node.c:
        return tuple(items)
    same_class = class_name(type(twin)) == name
    found: Any = type(twin) if same_class else graft.buildable_class(node.c, twin)
    if found is None or not issubclass(found, tuple):
        return tuple(items)
    made: Any = tuple.__new__(found, items)
    plan_attributes(graft, node.a, made, mine=False)
    return made


def plan_set(graft: Graft, node: Set, twin: object) -> Any:
    # Members are hashed, so each has to be whole before it goes in.
    items = [graft.finished(str(i), value) for i, value in enumerate(node.v)]
    if node.frozen:
        cls = _subclass(graft, node.c, twin, frozenset)
        made: Any = _hashed(graft, lambda: cls.__new__(cls, items))
        if type(twin) is cls and not node.a and twin == made and all(type(m) in PLAIN for m in items):
            made = twin
        elif node.c:
            plan_attributes(graft, node.a, made, mine=False)
        return graft.bind(node, made)
    fits = class_name(type(twin)) == node.c if node.c else type(twin) is set
    own = graft.use(node, twin, fits=fits)
    mine = own is not MISSING
    if not mine:
        cls = _subclass(graft, node.c, twin, set)
        own = graft.bind(node, cls.__new__(cls))
    if node.c:
        plan_attributes(graft, node.a, own, mine=mine)
    members = _hashed(graft, lambda: set(items))
    if mine:
        graft.write(_refill_set, own, members)
    else:
        set.update(own, members)
    return own


def _hashed(graft: Graft, make: Callable[[], Any]) -> Any:
    """Return what `make` hashes its parts for; their class may refuse in any way it likes."""
    if graft.errors:  # parts that could not be planned are not whole
        return frozenset()
    try:
        return make()
    except Exception as error:
        raise CorruptObject(
            f"{graft.place} holds what cannot be hashed: {type(error).__name__}: {error}."
        ) from error


def _refill_set(target: set[Any], members: set[Any]) -> None:
    set.clear(target)
    set.update(target, members)


def plan_deque(graft: Graft, node: Deque, twin: object) -> Any:
    fits = isinstance(twin, deque) and twin.maxlen == node.m
    fits = fits and (class_name(type(twin)) == node.c if node.c else type(twin) is deque)
    own = graft.use(node, twin, fits=fits)
    mine = own is not MISSING
    had = list(members_of(own)) if mine else []
    if not mine:
        cls = _subclass(graft, node.c, twin, deque)
        own = graft.bind(node, cls.__new__(cls))
        deque.__init__(own, (), node.m)
    items = plan_items(graft, node.v, had)
    if node.c:
        plan_attributes(graft, node.a, own, mine=mine)
    if len(items) != len(had) or not all(map(same, items, had)):
        graft.write(_refill_deque, own, items)
    return own


def _refill_deque(target: deque[Any], items: list[Any]) -> None:
    deque.clear(target)
    deque.extend(target, items)


_DICTS: dict[str, type] = {
    "": dict,
    "collections:OrderedDict": OrderedDict,
    "collections:defaultdict": defaultdict,
}


def plan_dict(graft: Graft, node: Dict, twin: object) -> Any:
    fits = isinstance(twin, dict) and class_name(type(twin)) == (node.c or "builtins:dict")
    own = graft.use(node, twin, fits=fits)
    had: dict[Any, Any] = dict(items_of(own)) if own is not MISSING else {}
    if own is MISSING:
        cls: Any = _DICTS.get(node.c) or _subclass(graft, node.c, twin, dict)
        result: Any = graft.bind(node, cls.__new__(cls))
        if isinstance(result, defaultdict):
            result.default_factory = graft.value("default_factory", node.f)
    else:
        result = own
    pairs: list[tuple[Any, Any]] = []
    for key, value in (node.v or {}).items():
        new = graft.value(key, value, had.get(key, MISSING))
        if new is not MISSING:
            pairs.append((key, new))
    for i, (key_node, value) in enumerate(node.kv or ()):
        key = graft.finished(f"#{i}.key", key_node)
        old = _hashed(graft, partial(had.get, key, MISSING))
        new = graft.value(f"#{i}", value, MISSING if graft.errors else old)
        if new is not MISSING:
            pairs.append((key, new))
    if node.c:
        plan_attributes(graft, node.a, result, mine=own is not MISSING)
    keys = _hashed(graft, lambda: {key for key, _ in pairs})
    extra = [key for key, value in had.items() if graft.is_structural(value) and key not in keys]
    if extra and not graft.errors:
        graft.error(f"the program has more here: {', '.join(map(repr, extra))}.")
    if not _same_keys(had, pairs) or not all(same(v, had[k]) for k, v in pairs):
        graft.write(_refill_dict, result, pairs)
    return result


def _same_keys(had: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> bool:
    # True and 1 are equal as keys and not the same.
    return len(had) == len(pairs) and all(
        type(a) is type(b) and (a is b or a == b) for a, (b, _) in zip(had, pairs, strict=True)
    )


def _refill_dict(target: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> None:
    # An OrderedDict keeps its order in a list of its own, which dict's methods would leave empty.
    # Other subclasses may do anything in __setitem__, so they are filled as the dicts they are.
    cls: Any = OrderedDict if isinstance(target, OrderedDict) else dict
    cls.clear(target)
    for key, value in pairs:
        cls.__setitem__(target, key, value)
