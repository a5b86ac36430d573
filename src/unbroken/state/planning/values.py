"""What a document may bring wherever it likes: values, of which nothing can be called."""

from __future__ import annotations

from collections import deque

import numpy as np

from unbroken.state.nodes import (
    Class,
    External,
    Function,
    Link,
    Method,
    Opaque,
    Partial,
    Ref,
    Scope,
    Value,
    children,
    class_name,
)

VALUE_TYPES: dict[str, type] = {
    class_name(t): t
    for t in (
        *(bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, deque),
        *(t for t in set(np.sctypeDict.values()) if issubclass(t, (np.bool_, np.number))),
    )
}
"""Classes that a document may name although the program does not hold them: making one does nothing."""


def holds_values_alone(node: Value) -> bool:
    """Whether nothing in a node leads to what a program calls, or to what stands elsewhere."""
    stack: list[Value] = [node]
    while stack:
        found = stack.pop()
        if isinstance(found, Class) and found.q in VALUE_TYPES:
            continue
        if isinstance(found, (Class, Function, Method, Partial, Ref, Link, Scope, External, Opaque)):
            return False
        if not (found is None or isinstance(found, (bool, int, float, str))):
            stack.extend(child for _, child in children(found))
    return True
