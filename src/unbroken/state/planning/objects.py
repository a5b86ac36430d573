"""Objects with attributes and slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unbroken.state.contents import slot_of
from unbroken.state.lookup import Kind, attributes_of
from unbroken.state.nodes import Node, Object, Value, class_name, same
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft


def plan_object(graft: Graft, node: Object, twin: object) -> Any:
    own = graft.use(node, twin, fits=twin is not MISSING and class_name(type(twin)) == node.c)
    mine = own is not MISSING
    if not mine:
        if graft.is_structural(twin) or (callable(twin) and not graft.may_stand_for(node, twin)):
            return keep_program_s(graft, node, node.c, twin)
        own = graft.known_elsewhere(node)
        mine = own is not MISSING
    if not mine:
        cls = graft.buildable_class(node.c, twin)
        if cls is None:
            return graft.bind(node, None if twin is MISSING else twin)
        try:
            own = graft.bind(node, object.__new__(cls))
        except TypeError:  # a class written in C that makes its objects itself
            return graft.bind(node, graft.refuse(f"{node.c} cannot be built without its constructor.", twin))
    if mine and graft.facts(type(own)).kind is Kind.OPAQUE:
        graft.error(
            f"{node.c} was saved without what its class keeps in memory of C, so that half of it is lost."
        )
        return graft.bind(node, own)
    captor = next((c for rule in graft.policy.captors if (c := rule(own)) is not None), None)
    only = captor.attributes(own) if captor is not None else None
    facts = graft.facts(type(own))
    outer, graft.remaking = graft.remaking, bool(facts.remade)
    try:
        with graft.growth.inside(facts, mine=mine):
            plan_attributes(graft, {**node.a, **node.s}, own, mine=mine, only=only)
    finally:
        graft.remaking = outer
    if facts.remade and not mine:
        graft.write(graft.policy.remade[facts.remade], own)
    elif facts.grown and not mine:
        like = graft.growth.like(node.c)
        graft.write(facts.grown.complete, own, None if like is MISSING else like)
    if node.x:
        if captor is None:
            graft.error(f"{node.c} was saved with {', '.join(node.x)}, which nothing here restores.")
        else:
            captor.plan(node.x, own, graft)
    return own


def keep_program_s(graft: Graft, node: Node, saved: str, twin: object) -> Any:
    """Another kind of thing stands here. What the program calls is the program's: it stays, and is named."""
    if callable(twin) and not graft.is_structural(twin):
        graft.note("stays", f"{saved} was saved; the program's {class_name(type(twin))} stays.")
    else:
        graft.error(f"{saved} was saved and the program has {class_name(type(twin))} here.")
    return graft.bind(node, twin)


def plan_attributes(
    graft: Graft,
    saved: Mapping[str, Value],
    owner: Any,
    *,
    mine: bool,
    only: frozenset[str] | None = None,
) -> None:
    """Plan the attributes and slots of `owner`; `mine`: it is the twin's, and what it has counts."""
    facts = graft.facts(type(owner))
    # Written into __dict__ and not through setattr: properties and nn.Module would act on it.
    attributes: dict[str, Any] | None = owner.__dict__ if type(owner).__dictoffset__ else None
    had = attributes_of(owner, facts) if mine else {}
    slots = frozenset(facts.slots)
    for name, value in saved.items():
        if name in facts.skip:
            graft.error(f"the attribute {name} belongs to the process and cannot come from a checkpoint.")
        elif mine and only is not None and name not in only:
            # Its captor did not say so yet when this was saved.
            graft.note_at(name, "kept", "its captor leaves it to the program.")
        elif name in slots:
            _slot(graft, owner, name, value, mine=mine)
        elif attributes is None:
            graft.error(f"{class_name(type(owner))} holds no attribute {name}.")
        else:
            old = had.get(name, MISSING)
            new = graft.value(name, value, old)
            if covers_method(owner, name, new, attributes):
                graft.error(
                    f"the attribute {name} would stand in front of a method of {class_name(type(owner))}."
                )
            elif new is not MISSING and not same(new, old):
                graft.write(attributes.__setitem__, name, new)
    if mine:
        _remove(graft, saved, owner, attributes or {}, only)


def covers_method(owner: object, name: str, new: object, held: Mapping[str, object]) -> bool:
    """Whether what a document brings would be called where the class of `owner` has a method.

    `held` is what the program has put there itself.
    """
    return callable(new) and name not in held and callable(getattr(type(owner), name, None))


def _slot(graft: Graft, owner: object, name: str, value: Value, *, mine: bool) -> None:
    old = slot_of(owner, name) if mine else MISSING
    new = graft.value(name, value, old)
    if new is not MISSING and not same(new, old):
        graft.write(object.__setattr__, owner, name, new)


def _remove(
    graft: Graft,
    saved: Mapping[str, Value],
    owner: object,
    attributes: dict[str, Any],
    only: frozenset[str] | None,
) -> None:
    facts = graft.facts(type(owner))
    held = [*attributes, *(name for name in facts.slots if slot_of(owner, name) is not MISSING)]
    for name in held:
        if name in saved or name in facts.skip or (only is not None and name not in only):
            continue
        kind = graft.facts(type(slot_of(owner, name) if name in facts.slots else attributes[name])).kind
        if kind is Kind.EXTERNAL or graft.keeps(name):
            continue
        graft.note_at(name, "removed", "is gone, as in the saved state.")
        if name in facts.slots:
            graft.write(object.__delattr__, owner, name)
        else:
            graft.write(attributes.pop, name)
