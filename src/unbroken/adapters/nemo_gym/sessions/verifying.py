"""Whether a server is proved to do nothing but verify: then it keeps nothing, and nothing has to be brought back.

Proved means that all of the class's own source was read, that a session is neither begun nor stepped in it, that it has
neither routes nor tools of its own, and that nothing in it writes to what outlives a call. What cannot be told is no proof.
What it does to its own attributes is judged by `nature`.

Not promised: a write behind a call into a module in which none of the server's classes is defined.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unbroken.adapters.nemo_gym.sessions.bindings import bindings
from unbroken.adapters.nemo_gym.sessions.clocks import is_framework, modules_of, tree_of

_OWN_SESSIONS = frozenset({"seed_session", "reset", "step", "register_mcp_tools", "run_webserver"})
_WITH_TOOLS = frozenset({"MCPResourcesServer", "GymnasiumServer"})
_WHEREVER = frozenset({"globals", "exec", "eval"})
"""Functions that write to places which the source does not name, or give access to them."""
_GIVE_PARTS = frozenset({"get", "setdefault", "pop", "values", "items"})
_DEEPEST = 3
_OF_ITS_ARGUMENT = frozenset({"setattr", "delattr", "vars"})
_BUILDING = frozenset({"__init__", "model_post_init", "__post_init__"})
"""Methods that run before there is a call."""
_MAKES = (ast.List, ast.Dict, ast.Set, ast.Call)


def only_verifies(cls: type, mutators: frozenset[str]) -> bool:
    """Say whether it is proved that a server's class does nothing but verify. `mutators`: methods that change what they are of."""
    own = [base for base in cls.__mro__ if not is_framework(base)]
    if _WITH_TOOLS & {base.__name__ for base in cls.__mro__}:
        return False
    if any(getattr(value, "__gym_tool__", False) for base in own for value in vars(base).values()):
        return False
    wanted = {base.__name__ for base in own}
    for module in modules_of(cls):
        tree = tree_of(module)
        if tree is None:
            return False
        methods: dict[int, str] = {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in wanted:
                wanted.discard(node.name)
                if not _only_verifies(node):
                    return False
                methods |= {id(part): part.name for part in _functions(node)}
        names, cached = _names_of(tree), _cached(tree)
        for function in _functions(tree):
            name = methods.get(id(function), "")
            if name not in _BUILDING and _writes(function, names, cached, mutators, is_own=bool(name)):
                return False
    return not wanted


def _only_verifies(cls: ast.ClassDef) -> bool:
    for node in cls.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
            node.name in _OWN_SESSIONS or (node.name == "setup_webserver" and not _as_it_was(node))
        ):
            return False
    return True


def _as_it_was(setup: ast.AST) -> bool:
    """Whether `setup_webserver` returns the application of its parent without having done anything to it."""
    applications = {
        target.id
        for node in ast.walk(setup)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "super().setup_webserver()"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    returned: set[int] = set()
    for node in ast.walk(setup):
        if isinstance(node, ast.Return):
            value = node.value
            is_parents = value is not None and ast.unparse(value) == "super().setup_webserver()"
            if not is_parents and not (isinstance(value, ast.Name) and value.id in applications):
                return False
            returned.add(id(value))
    for node in ast.walk(setup):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in applications:
            if id(node) not in returned:
                return False
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("setup_webserver()"):
            return False
    return True


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _names_of(tree: ast.Module) -> frozenset[str]:
    """Return the names that a module binds outside of functions."""
    names: set[str] = set()
    for node in tree.body:
        for part in ast.walk(node) if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ():
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                names.add(part.id)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return frozenset(names)


def _writes(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    module: frozenset[str],
    cached: frozenset[str],
    mutators: frozenset[str],
    *,
    is_own: bool,
) -> bool:
    """Whether a function writes to a global, a variable around it, or a default of one of its parameters. `is_own`: it is of the server."""
    local = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    local |= {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    outlive = (module - local) | _with_defaults(function.args)
    for _ in range(_DEEPEST):
        outlive |= {name for name, value in bindings(function) if _part_of(value, cached) in outlive}
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return True
        written: ast.expr | None = None
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            written = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            written = node.func.value if node.func.attr in mutators else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in _WHEREVER or (is_own and _sets_own(node)):
                return True
            written = node.args[0] if node.func.id in _OF_ITS_ARGUMENT and node.args else None
        if written is not None and _root(written) in outlive:
            return True
    return False


def _sets_own(call: ast.Call) -> bool:
    """Whether a call sets attributes of the server by names that are not in the source, or hands the server to other code."""
    return any(isinstance(argument, ast.Name) and argument.id == "self" for argument in call.args)


def _with_defaults(arguments: ast.arguments) -> frozenset[str]:
    """Return the parameters whose default is one object for all calls, and can be changed."""
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(reversed(positional), reversed(arguments.defaults), strict=False)]
    pairs += [
        (a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None
    ]
    return frozenset(argument.arg for argument, default in pairs if isinstance(default, _MAKES))


def _part_of(node: ast.expr, cached: frozenset[str]) -> str:
    """Return the variable that an expression gives a part of, or itself; "" if it makes something new."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _GIVE_PARTS
        ):
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in cached:
            return node.func.id
        else:
            return node.id if isinstance(node, ast.Name) else ""


def _cached(tree: ast.Module) -> frozenset[str]:
    """Return the functions of a module that give the same object again."""
    return frozenset(
        function.name
        for function in _functions(tree)
        if any("cache" in ast.unparse(decorator) for decorator in function.decorator_list)
    )


def _root(node: ast.expr) -> str:
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return node.id if isinstance(node, ast.Name) else ""
