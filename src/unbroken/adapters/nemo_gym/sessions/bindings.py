"""What the variables of a function may stand for, read from its source: of `x = self.a or {}` it is `self.a`, or a new dict.

Not promised: variables that another function is given, or returns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def bindings(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Find the variables of a function, each with the expressions that it, or an entry of which it, may be."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            pairs = [(node.target, node.value)] if node.value is not None else []
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.withitem):
            pairs = [(node.optional_vars, node.context_expr)] if node.optional_vars is not None else []
        else:
            continue
        for target, value in pairs:
            for name in _names(target):
                for one in _alternatives(value):
                    yield name, one


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _names(part)
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)


def _alternatives(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.BoolOp):
        for part in value.values:
            yield from _alternatives(part)
    elif isinstance(value, ast.IfExp):
        yield from _alternatives(value.body)
        yield from _alternatives(value.orelse)
    elif isinstance(value, (ast.NamedExpr, ast.Await)):
        yield from _alternatives(value.value)
    else:
        yield value
