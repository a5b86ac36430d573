"""The public names as their source has them: nothing of what they are made for is imported.

Invariant: what is found here is what `help()` shows of our own classes and functions.

Not promised: what a class inherits from another package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from docsite import api

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One file: what it defines, and where what it imports comes from."""

    name: str
    defined: dict[str, ast.stmt]
    imported: dict[str, str]


@dataclass(frozen=True)
class Class:
    """A class, where it is defined."""

    module: Module
    node: ast.ClassDef

    def bases(self) -> Iterator[Class]:
        """Return the classes of ours that it inherits from, nearest first."""
        for base in self.node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(named, ast.Name) and isinstance(found := look_up(self.module, named.id), Class):
                yield found
                yield from found.bases()

    def members(self) -> dict[str, tuple[Class, ast.stmt]]:
        """Return its methods, properties and fields, inherited ones too."""
        found: dict[str, tuple[Class, ast.stmt]] = {}
        for owner in (self, *self.bases()):
            for node in owner.node.body:
                name = name_of(node)
                if name and name not in found:
                    found[name] = (owner, node)
        return found

    @property
    def said(self) -> str:
        own = (ast.get_docstring(one.node) for one in (self, *self.bases()))
        return next((text for text in own if text), "")


@dataclass(frozen=True)
class Public:
    """Something that a person can call."""

    name: str
    own: str
    """Its docstring; that of the class for what makes an object of it."""
    about: str
    """The docstring of the class, if it belongs to one."""
    parameters: dict[str, str]
    """Names, each with what stands below it where it is a field."""
    raised: frozenset[str]
    """Names of the classes that it raises itself, or by a function of the same file that is nobody else's."""


@cache
def module(name: str) -> Module:
    path = api.SOURCE.parent.joinpath(*name.split("."))
    file: Path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text())
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unbroken")
        for alias in node.names
    }
    return Module(name, {found: node for node in tree.body if (found := name_of(node))}, imported)


def name_of(node: ast.stmt) -> str:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return node.name
    target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def look_up(where: Module, name: str) -> Class | Function | None:
    """Return what a name stands for in a file of ours; None for values, and for what comes from elsewhere."""
    if name in where.imported:
        home, _, name = where.imported[name].rpartition(".")
        return look_up(module(home), name)
    node = where.defined.get(name)
    if isinstance(node, ast.ClassDef):
        return Class(where, node)
    return node if isinstance(node, FUNCTIONS) else None


def public(face: str) -> Iterator[tuple[str, str, list[Public]]]:
    """Return each class and function of a face with its docstring, and all that can be called of it."""
    for name, home in api.gathered(face).items():
        where = module(home.rpartition(".")[0])
        found = look_up(where, home.rpartition(".")[2])
        if isinstance(found, Class):
            yield name, found.said, list(_of_class(name, found))
        elif found is not None:
            said = ast.get_docstring(found) or ""
            yield name, said, [Public(name, said, "", parameters(found), raised(found, where, None))]


def _of_class(name: str, found: Class) -> Iterator[Public]:
    members = found.members()
    made = members.get("__init__") or members.get("__post_init__")
    owner, node = made or (found, None)
    if isinstance(node, FUNCTIONS):
        said = f"{found.said}\n\n{ast.get_docstring(node) or ''}"
        given = parameters(node) if node.name == "__init__" else _fields(found)
        yield Public(f"{name}()", said, found.said, given, raised(node, owner.module, owner))
    elif any("dataclass" in ast.unparse(one) for one in found.node.decorator_list):
        yield Public(f"{name}()", found.said, found.said, _fields(found), frozenset())
    for member, (owner, node) in members.items():
        if member.startswith("_") or not isinstance(node, FUNCTIONS):
            continue
        own = next((text for one in (found, *found.bases()) if (text := _said_by(one, member))), "")
        yield Public(f"{name}.{member}", own, found.said, parameters(node), raised(node, owner.module, owner))


def _said_by(one: Class, member: str) -> str:
    nodes = [node for node in one.node.body if isinstance(node, FUNCTIONS) and node.name == member]
    return next((text for node in nodes if (text := ast.get_docstring(node))), "")


def _fields(found: Class) -> dict[str, str]:
    told: dict[str, str] = {}
    for owner in (found, *found.bases()):
        for node, below in zip(owner.node.body, [*owner.node.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and (name := name_of(node)):
                is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                told.setdefault(name, str(below.value.value) if is_text else "")  # type: ignore[union-attr]
    return told


def parameters(node: Function) -> dict[str, str]:
    given = node.args
    return {one.arg: "" for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def raised(
    node: Function, where: Module, owner: Class | None, seen: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the names of what a function raises, by private functions and methods beside it, too."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and isinstance(inner.exc, ast.Call):
            found.add(ast.unparse(inner.exc.func))
        called = _private(inner, where, owner)
        if called is not None and called.name not in seen:
            found |= raised(called, where, owner, seen | {called.name})
    return frozenset(found)


def _private(node: ast.AST, where: Module, owner: Class | None) -> Function | None:
    if not isinstance(node, ast.Call):
        return None
    target = node.func
    found: ast.stmt | None = None
    if isinstance(target, ast.Name) and target.id.startswith("_"):
        found = where.defined.get(target.id)
    elif (
        owner is not None
        and isinstance(target, ast.Attribute)
        and target.attr.startswith("_")
        and isinstance(target.value, ast.Name)
        and target.value.id in ("self", "cls")
    ):
        found = next((one for one in owner.node.body if name_of(one) == target.attr), None)
    return found if isinstance(found, FUNCTIONS) else None
