"""What a server's source says of its state before any traffic: what it changes, and what it will hold that is alive.

It is read, never run. What it cannot say shows in traffic, which has the last word (`states`). Invariant: `stateless` is a
server only if that is proved, and `snapshot` only if it is known where its sessions are; else its calls are made again.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from unbroken.adapters.nemo_gym.control import Capability
from unbroken.adapters.nemo_gym.sessions.bindings import bindings
from unbroken.adapters.nemo_gym.sessions.clocks import modules_of, tree_of
from unbroken.adapters.nemo_gym.sessions.facts import fact_of
from unbroken.adapters.nemo_gym.sessions.keyed import keyed_by_session
from unbroken.adapters.nemo_gym.sessions.live import COORDINATORS, held_kind, kind_of
from unbroken.adapters.nemo_gym.sessions.verifying import only_verifies

_BUILDING = frozenset({"__init__", "model_post_init", "setup_webserver", "__post_init__"})
_MUTATORS = frozenset({
    "append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert", "remove", "discard", "put",
    "put_nowait", "move_to_end", "appendleft", "popleft",
})  # fmt: skip
_READERS = frozenset({
    "get", "keys", "values", "items", "copy", "index", "count", "format", "join", "split", "strip", "lower", "replace", "encode",
    "startswith", "endswith", "render", "len", "sorted", "list", "tuple", "set", "dict", "str", "isinstance", "enumerate", "any",
    "all", "sum", "min", "max", "repr", "zip", "choice", "sample", "deepcopy", "search", "match", "findall", "sub", "finditer",
    "debug", "info", "warning", "error",
})  # fmt: skip
"""Functions and methods that leave their arguments as they are."""
_PROCESS = re.compile(r"\b(Process|Popen|Connection|PipeConnection|ProcessPoolExecutor)\b")
_SANDBOX = re.compile(r"\b\w*Sandbox\b")
_WAITING = re.compile(r"(?i:\b(dict|list|set|deque|defaultdict)\b)\[.*\b(Future|Event|Condition)\b")
_STARTS = frozenset({"Process", "Popen", "Pipe", "create_subprocess_exec", "create_subprocess_shell"})
_SCALARS = (str, int, float, bool, bytes, type(None), complex, frozenset)


class Nature:
    """Of the class of a server."""

    def __init__(self, cls: type) -> None:
        self.fact = fact_of(cls)
        self.assigned: set[str] = set()
        """Attributes that the class's code assigns anywhere."""
        self.mutated: set[str] = set()
        """Attributes that its code changes outside of building it."""
        self.handed: set[str] = set()
        """Attributes that it hands to other code there, or, if they are objects of their own, calls."""
        self.keyed: set[str] = set()
        """Attributes in which it looks something up by the id of a session, as it is."""
        self._only_verifies = only_verifies(cls, _MUTATORS)
        self._readable = False
        self._annotations: dict[str, str] = {}
        self._static: Capability | None = None
        self.why = self.fact[1] if self.fact is not None else ""
        names = {base.__name__ for base in cls.__mro__}
        for module in modules_of(cls):
            tree = tree_of(module)
            if tree is not None:
                self._readable = True
                self._read(module, tree, names)

    def capability(
        self,
        values: Mapping[str, Any],
        *,
        has_maps: bool,
        changed: bool,
        failed: bool,
        excluded: bool,
    ) -> Capability:
        """Say what can be done, from the source, the attributes as they are, and what traffic has shown."""
        if self.fact is not None:
            return self.fact[0]
        if self._static is not None:
            return self._static
        if any(_waits(value) for value in values.values()):
            return "drain_only"
        if failed:
            return "replay"
        if has_maps:
            return "snapshot_with_exclusions" if excluded else "snapshot"
        if self._only_verifies and not changed and not self._writes(values):
            return "stateless"
        return "replay"

    @property
    def has_processes(self) -> bool:
        """Whether the source says that sessions have processes and the like: what can be read out is not all there is."""
        return self._static == "replay"

    def _writes(self, values: Mapping[str, Any]) -> bool:
        """Whether a call may leave something in an attribute, also in one that is not there yet."""
        absent = any(values.get(name) is None for name in self.mutated)
        return absent or any(self._may_change(name, value) for name, value in values.items())

    def _may_change(self, name: str, value: Any) -> bool:
        if held_kind(value):
            return False
        if not self._readable:
            return not isinstance(value, _SCALARS)
        if name in self.mutated:
            return True
        return name in self.handed and not isinstance(value, _SCALARS)

    def _read(self, module: ModuleType, tree: ast.Module, names: set[str]) -> None:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                self._read_class(module, tree, node)
            elif isinstance(node, ast.AnnAssign) and _WAITING.search(ast.unparse(node.annotation)):
                self._set("drain_only", f"{ast.unparse(node.target)} lets sessions wait for each other")

    def _read_class(self, module: ModuleType, tree: ast.Module, cls: ast.ClassDef) -> None:
        for node in ast.walk(cls):
            if isinstance(node, ast.AnnAssign):
                name = _attribute(node.target) or (
                    node.target.id if isinstance(node.target, ast.Name) else ""
                )
                if name and name != "config":
                    self._look(name, ast.unparse(node.annotation), module, tree)
        functions = {
            node.name: node for node in cls.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        building = _building(functions)
        for name, function in functions.items():
            self.assigned.update(_stored(function))
            if name not in building:
                self.mutated.update(_stored(function))
                self.mutated.update(_changed(function))
                self.handed.update(_handed(function))
                self.keyed.update(keyed_by_session(function))

    def _look(self, name: str, annotation: str, module: ModuleType, tree: ast.Module) -> None:
        """Judge an attribute by its annotation, and by the source of the module's classes that it names."""
        if _SANDBOX.search(annotation) and "Config" not in annotation:
            self._set("restart_only", f"{name} holds sandboxes ({annotation})")
        elif _WAITING.search(annotation):
            self._set("drain_only", f"{name} lets sessions wait for each other ({annotation})")
        elif _PROCESS.search(annotation):
            self._set("replay", f"{name} holds processes ({annotation})")
        else:
            for word in re.findall(r"\w+", annotation):
                for node in _class_of(word, module, tree):
                    self._look_into(name, node)

    def _look_into(self, name: str, cls: ast.ClassDef) -> None:
        for node in ast.walk(cls):
            called = node.func if isinstance(node, ast.Call) else None
            word = (
                called.attr
                if isinstance(called, ast.Attribute)
                else called.id
                if isinstance(called, ast.Name)
                else ""
            )
            if word in _STARTS:
                self._set("replay", f"{name} holds objects of {cls.name}, which has processes of its own")
            elif isinstance(node, ast.AnnAssign):
                annotation = ast.unparse(node.annotation)
                if _SANDBOX.search(annotation):
                    self._set("restart_only", f"{name} holds objects of {cls.name}, which has a sandbox")
                elif _PROCESS.search(annotation):
                    self._set("replay", f"{name} holds objects of {cls.name}, which has processes of its own")

    def _set(self, capability: Capability, why: str) -> None:
        if self._static is None:
            self._static = capability
            self.why = self.why or why


def _class_of(word: str, module: ModuleType, tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Find the source of a class that a module defines or imports."""
    cls = getattr(module, word, None)
    if isinstance(cls, type) and cls.__module__ != module.__name__:
        home = sys.modules.get(cls.__module__)
        folder = Path(module.__file__ or "").parent
        if home is None or not Path(getattr(home, "__file__", None) or "").is_relative_to(folder):
            return  # a library's; what it is says its name
        tree = tree_of(home) or tree
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == word:
            yield node


def _building(functions: Mapping[str, ast.AST]) -> set[str]:
    """Return the methods that run while a server is built only: those that build it, and what none but them mentions."""
    mentioned = {
        name: {
            node.attr
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
        for name, function in functions.items()
    }
    building = set(_BUILDING)
    while True:
        found = {
            name
            for name in functions
            if name.startswith("_")
            and name not in building
            and (by := {other for other, names in mentioned.items() if name in names and other != name})
            and by <= building - {"setup_webserver"}
        }
        if not found:
            return building
        building |= found


def _waits(value: Any) -> bool:
    """Whether a value is a container with something that several sessions wait for."""
    if isinstance(value, Mapping):
        parts = iter(cast("Mapping[object, object]", value).values())
    elif isinstance(value, (list, set, tuple)):
        parts = iter(cast("list[object]", value))
    else:
        return False
    return any(kind_of(part) in COORDINATORS - {"a task"} for part in islice(parts, 64))


def _attribute(node: ast.expr) -> str:
    """Return X of `self.X`, `self.X[…]`, `self.X.get(…)` and so on; "" for anything else."""
    while True:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return node.attr
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Await):
            node = node.value
        else:
            return ""


def _is_copy(node: ast.expr) -> bool:
    """Whether an expression is a copy of what it is made of, all through."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "model_copy":
        return any(keyword.arg == "deep" for keyword in node.keywords)
    return node.func.attr in {"model_dump", "deepcopy"}


def _stored(function: ast.AST) -> Iterator[str]:
    """Find attributes that are assigned to, or into."""
    for node in ast.walk(function):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            name = _attribute(node)
            if name:
                yield name


def _changed(function: ast.AST) -> Iterator[str]:
    """Find attributes on which a method that changes is called, also under the name of a local variable."""
    local: dict[str, set[str]] = {}
    for variable, value in bindings(function):
        if not _is_copy(value) and (attribute := _attribute(value)):
            local.setdefault(variable, set()).add(attribute)
    for node in ast.walk(function):
        changed: ast.expr | None = None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MUTATORS
        ):
            changed = node.func.value
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed = node.value
        if changed is not None:
            name = _attribute(changed)
            yield from (name,) if name else local.get(_root(changed), ())


def _handed(function: ast.AST) -> Iterator[str]:
    """Find attributes that are arguments of a call that may change them, or of which a method is called."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Attribute) and called not in _READERS:
            name = _attribute(node.func.value)
            if name:
                yield name
        word = called or (node.func.id if isinstance(node.func, ast.Name) else "")
        for argument in (
            (*node.args, *(keyword.value for keyword in node.keywords)) if word not in _READERS else ()
        ):
            name = _attribute(argument) if isinstance(argument, ast.Attribute) else ""
            if name:
                yield name


def _root(node: ast.expr) -> str:
    """Return the variable that an expression begins with; "" if with none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
