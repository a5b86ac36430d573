"""What the program calls: functions, methods, partials, classes. None of them comes from a document."""

from __future__ import annotations

import types
from functools import partial
from typing import TYPE_CHECKING, Any

from unbroken.state.code import changing_parts, code_hash, function_name, may_be_one_code, partial_name
from unbroken.state.nodes import Class, Function, Method, Partial, class_name, same
from unbroken.state.planning.objects import keep_program_s
from unbroken.state.planning.values import VALUE_TYPES
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft


def plan_function(graft: Graft, node: Function, twin: object) -> Any:
    if isinstance(twin, types.FunctionType) and function_name(twin) == node.q:
        graft.bind(node, twin)
        _closure(graft, node, twin)
        return twin
    if callable(twin) and not isinstance(twin, type) and function_name(twin) == node.q:
        graft.bind(node, twin)
        if node.of is not None:
            owner = graft.value("__self__", node.of, getattr(twin, "__self__", MISSING))
            if owner is not getattr(twin, "__self__", MISSING):
                return graft.bind(node, getattr(owner, getattr(twin, "__name__", ""), twin))
        return twin
    known = graft.held(node.q)
    if callable(known) and not isinstance(known, type):
        return graft.bind(node, known)
    if twin is MISSING or not callable(twin):
        graft.error(f"the function {node.q} was saved; it is none that the program holds.")
        return graft.bind(node, None if twin is MISSING else twin)
    return keep_program_s(graft, node, node.q, twin)


def _closure(graft: Graft, node: Function, twin: types.FunctionType) -> None:
    if not may_be_one_code(node.h, code_hash(twin.__code__)):
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
    parts = changing_parts(twin)
    for name, value in node.a.items():
        old = parts.get(name, MISSING)
        new = graft.value(name, value, old)
        if same(new, old):
            continue
        if name.startswith("<"):
            graft.note_at(name, "changed", "is a default argument; the program's stays.")
        else:
            graft.write(vars(twin).__setitem__, name, new)
    for name in parts:
        if name not in node.a and not name.startswith("<") and not graft.keeps(name):
            graft.note_at(name, "removed", "is gone, as in the saved state.")
            graft.write(vars(twin).pop, name)


def plan_method(graft: Graft, node: Method, twin: object) -> Any:
    owner = graft.value("__self__", node.of, getattr(twin, "__self__", MISSING))
    if isinstance(twin, types.MethodType) and twin.__self__ is owner and twin.__func__.__name__ == node.n:
        return twin
    known = graft.held(f"{class_name(type(owner))}.{node.n}")
    if not isinstance(known, types.MethodType):
        return graft.refuse(f"the method {node.n} was saved; it is none that the program holds.", twin)
    return types.MethodType(known.__func__, owner)


def plan_partial(graft: Graft, node: Partial, twin: object) -> Any:
    own = isinstance(twin, partial)
    old: Any = twin
    function = graft.value("func", node.f, old.func if own else MISSING)
    args = graft.value("args", node.a, old.args if own else MISSING)
    keywords = graft.value("keywords", node.k, old.keywords if own else MISSING)
    if not callable(function) or not isinstance(args, tuple) or not isinstance(keywords, dict):
        return graft.refuse("is a partial of something that cannot be called.", twin)
    if not (own and old.func is function) and graft.held(partial_name(function)) is None:
        # Or a document could choose the arguments of any function that the program holds.
        return graft.refuse(
            f"is a partial of {function_name(function)}, which the program has none of.", twin
        )
    if own and old.func is function and len(args) == len(old.args) and all(map(same, args, old.args)):
        return graft.bind(node, twin)
    return graft.bind(node, partial(function, *args, **keywords))


def plan_class(graft: Graft, node: Class, twin: object) -> Any:
    if isinstance(twin, types.ModuleType) and f"{twin.__name__}:" == node.q:
        return twin
    if isinstance(twin, type) and class_name(twin) == node.q:
        return twin
    found = VALUE_TYPES.get(node.q) or graft.held(node.q)
    if found is None or not isinstance(found, (type, types.ModuleType)):
        return graft.refuse(f"the class {node.q} was saved; it is none that the program holds.", twin)
    return found
