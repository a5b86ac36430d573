"""The attributes of a server that its source looks up by the id of a session: there its sessions are, before there is any.

Only the id as it is counts, and only in an attribute itself. What is made of an id (a tuple, a text with it) and what lies deeper
is not found by `attributes` either.

Not promised: that the id is recognised under an unusual name. It is found in traffic then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unbroken.adapters.nemo_gym.sessions.bindings import bindings

_LOOKS_UP = frozenset({"get", "setdefault", "pop", "add", "discard", "remove"})
_NAME = re.compile(r"_?(session|sess|sid|session_?id|SESSION_ID_KEY)", re.IGNORECASE)
"""What a variable, parameter or attribute is called that is the id of a session, or the key that it is found by."""
_FUNCTION = re.compile(r"_?(get_|require_)?(mcp_)?session_id")
_DEEPEST = 3


def keyed_by_session(function: ast.AST) -> Iterator[str]:
    """Find the attributes that a function looks up by the id of a session."""
    reading = _Reading(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript):
            holder, key = node.value, node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LOOKS_UP
            and node.args
        ):
            holder, key = node.func.value, node.args[0]
        else:
            continue
        name = reading.attribute(holder)
        if name and reading.is_id(key):
            yield name


class _Reading:
    """One function, and what its variables are assigned from."""

    def __init__(self, function: ast.AST) -> None:
        self._assigned: dict[str, list[ast.expr]] = {}
        for name, value in bindings(function):
            self._assigned.setdefault(name, []).append(value)

    def attribute(self, node: ast.expr) -> str:
        """Return X of `self.X`, also under the name of a local variable; "" for anything else."""
        if isinstance(node, ast.Name) and len(self._assigned.get(node.id, ())) == 1:
            node = self._assigned[node.id][0]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return node.attr
        return ""

    def is_id(self, node: ast.expr, depth: int = 0) -> bool:
        if isinstance(node, ast.Name):
            sources = self._assigned.get(node.id)
            if sources and depth < _DEEPEST:
                return all(self.is_id(source, depth + 1) for source in sources)
            return _NAME.fullmatch(node.id) is not None
        if isinstance(node, ast.Constant):
            return node.value == "session_id"
        if isinstance(node, ast.Subscript):  # request.session[SESSION_ID_KEY]
            return ast.unparse(node.value).endswith(".session") and self.is_id(node.slice, depth)
        if isinstance(node, ast.Attribute):
            return _NAME.fullmatch(node.attr) is not None
        return isinstance(node, ast.Call) and self._returns_id(node, depth)

    def _returns_id(self, node: ast.Call, depth: int) -> bool:
        called = ast.unparse(node.func)
        if called.endswith(".session.get") and node.args:
            return self.is_id(node.args[0], depth)
        return _FUNCTION.fullmatch(called.rpartition(".")[2]) is not None
