"""Moments of the monotonic clock in a server's state, found in its source.

Such a moment means nothing in another process or after a boot. What counts is how long ago it was: on the way into another
process it is moved so that this stays. Its name (of an attribute, or of a key in a dict) is all that is known of it.

Not promised: moments that reach the state through a call of another function. They come back as they were.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

_CALLS = frozenset({"monotonic", "perf_counter"})
_ADDS = frozenset({"append", "appendleft"})
_NOT_OURS = frozenset({"nemo_gym", "pydantic", "builtins", "abc", "typing"})
_DEEPEST = 6


def is_framework(cls: type) -> bool:
    """Whether a class is what servers are made of, and none of theirs."""
    return cls.__module__.split(".", maxsplit=1)[0] in _NOT_OURS


def modules_of(cls: type) -> tuple[ModuleType, ...]:
    """Return the modules that define a server's class and those it was made of, without the framework's own."""
    found: dict[str, ModuleType] = {}
    for base in cls.__mro__:
        module = sys.modules.get(base.__module__)
        if module is not None and not is_framework(base):
            found[base.__module__] = module
    return tuple(found.values())


@cache
def tree_of(module: ModuleType) -> ast.Module | None:
    """Return the source of a module, parsed; None if it cannot be had."""
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py"):
        return None
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def clock_names(cls: type) -> frozenset[str]:
    """Return the names under which a server's code keeps moments of the monotonic clock."""
    names: set[str] = set()
    for module in modules_of(cls):
        tree = tree_of(module)
        if tree is not None:
            names |= names_in(tree)
    return frozenset(names)


def names_in(tree: ast.Module) -> frozenset[str]:
    """Return the names under which a module keeps moments of the monotonic clock."""
    names: set[str] = set()
    _Finder(names).visit(tree)
    return frozenset(names)


def moved(value: Any, names: frozenset[str], by: float, *, named: bool = False) -> Any:
    """Return `value` with its moments moved by so many seconds. Dicts, lists and objects are changed in place.

    `named` says that the value itself, or what it holds if it is a dict or list, stands under such a name.
    """
    return _Mover(names, by).of(value, 0, named=named)


class _Mover:
    def __init__(self, names: frozenset[str], by: float) -> None:
        self._names = names
        self._by = by
        self._seen: set[int] = set()

    def of(self, value: Any, depth: int, *, named: bool) -> Any:
        if type(value) is float:
            return value + self._by if named else value
        if depth == _DEEPEST or id(value) in self._seen or isinstance(value, (str, bytes, int, type(None))):
            return value
        self._seen.add(id(value))
        if isinstance(value, dict):
            items = cast("dict[object, Any]", value)
            self._among(items, depth, named=named)
        elif isinstance(value, (list, deque)):
            entries = cast("list[object]", value)
            for index, item in enumerate(entries):
                entries[index] = self.of(item, depth + 1, named=named)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            self._among(vars(value), depth, named=False)
        return value

    def _among(self, items: dict[Any, Any], depth: int, *, named: bool) -> None:
        for key, item in list(items.items()):
            new = self.of(item, depth + 1, named=named or key in self._names)
            if new is not item:
                items[key] = new


class _Finder(ast.NodeVisitor):
    """Collects the names that moments are stored under."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._locals: list[set[str]] = [set()]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._is_moment(node.value):
            for target in node.targets:
                self._store(target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and (self._is_moment(node.value) or _makes_moments(node.value)):
            if isinstance(node.target, ast.Name) and not self._in_function():
                self._names.add(node.target.id)  # a field of a class
            else:
                self._store(node.target)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr == "setdefault"
            and len(node.args) == 2
            and self._is_moment(node.args[1])
        ):
            self._store(ast.Subscript(function.value, node.args[0], ast.Store()))
        if (
            isinstance(function, ast.Attribute)
            and function.attr in _ADDS
            and any(map(self._is_moment, node.args))
        ):
            self._store(function.value)
        for keyword in node.keywords:
            if keyword.arg is not None and self._is_moment(keyword.value):
                self._names.add(keyword.arg)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and self._is_moment(value):
                self._names.add(key.value)
        self.generic_visit(node)

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._locals.append(set())
        self.generic_visit(node)
        self._locals.pop()

    def _in_function(self) -> bool:
        return len(self._locals) > 1

    def _store(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._locals[-1].add(target.id)
        elif isinstance(target, ast.Attribute):
            self._names.add(target.attr)
        elif isinstance(target, ast.Subscript):
            if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
                self._names.add(target.slice.value)
            elif isinstance(target.value, ast.Attribute):
                self._names.add(target.value.attr)

    def _is_moment(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return _is_clock(node.func)
        if isinstance(node, ast.Name):
            return node.id in self._locals[-1]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._is_moment(node.left) != self._is_moment(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            return self._is_moment(node.left) and not self._is_moment(node.right)
        return False


def _is_clock(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _CALLS and isinstance(node.value, ast.Name)
    return isinstance(node, ast.Name) and node.id in _CALLS


def _makes_moments(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and any(
        keyword.arg == "default_factory" and _is_clock(keyword.value) for keyword in node.keywords
    )
