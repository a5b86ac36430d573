"""Which environments a checkpoint holds, and by which way each was captured: read from the state itself.

Not promised: an environment that only code of the program leads to; it is in no checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unbroken.state.nodes import Coded, Dict, Identity, List, Node, Object, Ref, Scope, Tuple, Value, children
from unbroken.types import How

COMPONENT = "env_states"
_ROOT = "env"
"""Root of a worker's state that is its environment; others are its generators, and its loop."""

_INNER = ("envs", "env", "venv")
"""Attributes under which vectors and wrappers hold what they are around."""


@dataclass(frozen=True, slots=True)
class Environments:
    """So many environments of one kind, captured by one way. `where`: in this process, or in workers."""

    name: str
    way: How
    where: str
    count: int


def environments(roots: Mapping[str, Value]) -> tuple[Environments, ...]:
    """Return the environments below the roots of the component `env_states`, in their order."""
    found = Counter(_Search().among(roots, "here"))
    return tuple(Environments(name, way, where, count) for (name, way, where), count in found.items())


class _Search:
    def __init__(self) -> None:
        self._numbered: dict[int, Identity] = {}
        self._met: set[int] = set()

    def among(self, roots: Mapping[str, Value], where: str) -> Iterator[tuple[str, How, str]]:
        self._numbered = {node.id: node for root in roots.values() for node in _identities(root) if node.id}
        for root in roots.values():
            yield from self._at(root, where)

    def _at(self, value: Value, where: str) -> Iterator[tuple[str, How, str]]:
        node: object = self._numbered.get(value.to) if isinstance(value, Ref) else value
        if isinstance(node, (List, Tuple)):
            for item in node.v:
                yield from self._at(item, where)
        elif isinstance(node, Object) and id(node) not in self._met:
            self._met.add(id(node))
            yield from self._layer(node, where)

    def _layer(self, value: Object, where: str) -> Iterator[tuple[str, How, str]]:
        workers = [scope for held in value.x.values() for scope in _scopes(held)]
        if workers:
            for scope in workers:
                own = {key: root for key, root in scope.roots.items() if key == _ROOT}
                yield from _Search().among(own, "in workers")
            return
        inner = next(
            (name for name in _INNER if isinstance(value.a.get(name), (Object, List, Tuple, Ref))), ""
        )
        if inner:
            yield from self._at(value.a[inner], where)
        else:
            yield value.c.rpartition(":")[2], _way(value), where


def _way(env: Object) -> How:
    if "replay" in env.x:
        return How.WHOLE_REPLAY if env.x.get("whole") is True else How.REPLAY
    simulated = any(isinstance(held, Coded) and held.k.startswith("mujoco.") for held in env.a.values())
    return How.CAPTURER if simulated or "game" in env.x or "state" in env.x else How.STRUCTURAL


def _scopes(value: Value) -> Iterator[Scope]:
    if isinstance(value, Scope):
        yield value
    elif isinstance(value, List):
        for item in value.v:
            yield from _scopes(item)
    elif isinstance(value, Dict):
        for item in (value.v or {}).values():
            yield from _scopes(item)


def _identities(value: Value) -> Iterator[Identity]:
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Node):
            if isinstance(node, Identity):
                yield node
            if not isinstance(node, Scope):  # another process, with numbers of its own
                stack += [child for _, child in children(node)]
