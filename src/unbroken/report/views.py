"""Components that are read as something else than the tree in which they are stored.

A checkpoint may keep a component in a form that suits saving: segments, for one, that grow with what changed. People, `diff` and
`prove` then get what it means. Which components these are says a table, by the codec at a root of theirs.

A component that cannot be read so falls back to its tree, with a note; of two that are compared, both do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from unbroken.errors import UnbrokenError
from unbroken.format.meta import Meta
from unbroken.report.shown import Shown
from unbroken.state.nodes import Coded
from unbroken.state.snapshot import Component, Snapshot


class Show(Protocol):
    """Shows a component."""

    def __call__(self, component: Component, meta: Meta | None, *, every: bool) -> Shown: ...


@dataclass(frozen=True, slots=True)
class View:
    """How one kind of component is read. Each function raises UnbrokenError where it cannot be.

    `tree` returns the component with the root that holds `codec` in the form in which it is compared. `shown` is for people,
    who may want `every` part of it.
    """

    codec: str
    tree: Callable[[Component], Component]
    shown: Show


def view_of(component: Component) -> View | None:
    """Return the view of a component, None of one that is read as it is stored."""
    for node in component.roots.values():
        if isinstance(node, Coded) and node.k in _VIEWS:
            return _VIEWS[node.k]()
    return None


def shown(component: Component, meta: Meta | None, *, every: bool) -> tuple[Shown | None, str]:
    """Return a component as its view shows it, or None and why it cannot be shown so, if it has one."""
    view = view_of(component)
    if view is None:
        return None, ""
    try:
        return view.shown(component, meta, every=every), ""
    except UnbrokenError as error:
        return None, f"{component.name} is shown as it is stored: {error.message}"


def viewed(a: Snapshot, b: Snapshot) -> tuple[Snapshot, Snapshot, Mapping[str, str]]:
    """Return two states as their views have them, and a note for each component that cannot be read so."""
    sides: tuple[dict[str, Component], dict[str, Component]] = (dict(a.components), dict(b.components))
    notes: dict[str, str] = {}
    for name in sorted({*a.components, *b.components}):
        views = {view.codec: view for side in sides if name in side and (view := view_of(side[name]))}
        for view in views.values():
            try:
                read = [view.tree(side[name]) if name in side else None for side in sides]
            except UnbrokenError as error:
                notes[name] = f"compared as it is stored, the records of servers left out: {error.message}"
                break
            for side, component in zip(sides, read, strict=True):
                if component is not None:
                    side[name] = component
    return replace(a, components=sides[0]), replace(b, components=sides[1]), notes


def _nemo_gym() -> View:
    from unbroken.adapters.nemo_gym.trainer.payload import CODEC
    from unbroken.adapters.nemo_gym.view.layers import layered
    from unbroken.adapters.nemo_gym.view.tree import as_component
    from unbroken.report.gym import gym_shown

    def tree(component: Component) -> Component:
        made = as_component(layered(component, None), name=component.name)
        others = {
            place: node
            for place, node in component.roots.items()
            if not (isinstance(node, Coded) and node.k == CODEC)
        }
        return replace(component, roots={**others, **made.roots})

    def show(component: Component, meta: Meta | None, *, every: bool) -> Shown:
        return gym_shown(layered(component, meta), every=every)

    return View(CODEC, tree, show)


_VIEWS: Mapping[str, Callable[[], View]] = {"unbroken.nemo_gym": _nemo_gym}
"""Codec -> its view, built when it is needed: what it takes is imported then."""
