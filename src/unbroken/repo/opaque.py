"""Which places of a state hold pickles. Looks into scopes too: a worker's pickle is as dangerous."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unbroken.state.nodes import AnyNode, Opaque, Value, children, escape


def opaque_places(roots: Mapping[str, Value]) -> Iterator[str]:
    """Yield the place of every opaque value below `roots`, a mapping from places to nodes."""
    waiting: list[tuple[str, AnyNode]] = [
        (place, node) for place, value in roots.items() if (node := _node(value)) is not None
    ]
    while waiting:
        place, node = waiting.pop()
        if isinstance(node, Opaque):
            yield place
            continue
        waiting.extend(
            (f"{place}/{escape(key)}", below)
            for key, value in children(node)
            if (below := _node(value)) is not None
        )


def _node(value: Value) -> AnyNode | None:
    return None if value is None or isinstance(value, (bool, int, float, str)) else value
