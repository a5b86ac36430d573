"""How each word of a document is laid over the twin's object at its place.

Every planner returns the object to use and registers the writes that bring it to the saved state; none
touches anything. A planner binds its object before it plans what is inside, so that references from
inside find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unbroken.state import nodes
from unbroken.state.planning.arrays import plan_array, plan_objects, plan_view
from unbroken.state.planning.callables import plan_class, plan_function, plan_method, plan_partial
from unbroken.state.planning.containers import (
    plan_deque,
    plan_dict,
    plan_list,
    plan_packed,
    plan_set,
    plan_tuple,
)
from unbroken.state.planning.objects import plan_object
from unbroken.state.planning.outside import plan_external, plan_opaque, plan_scope
from unbroken.state.planning.plain import plan_bytes, plan_float, plan_int

if TYPE_CHECKING:
    from unbroken.state.graft import Graft

PLANNERS: dict[type, Callable[[Graft, Any, object], Any]] = {
    nodes.Float: plan_float,
    nodes.Int: plan_int,
    nodes.Bytes: plan_bytes,
    nodes.List: plan_list,
    nodes.Packed: plan_packed,
    nodes.Tuple: plan_tuple,
    nodes.Set: plan_set,
    nodes.Deque: plan_deque,
    nodes.Dict: plan_dict,
    nodes.Array: plan_array,
    nodes.ObjectArray: plan_objects,
    nodes.View: plan_view,
    nodes.Object: plan_object,
    nodes.Function: plan_function,
    nodes.Method: plan_method,
    nodes.Partial: plan_partial,
    nodes.Class: plan_class,
    nodes.External: plan_external,
    nodes.Opaque: plan_opaque,
    nodes.Scope: plan_scope,
}
"""By node type; coded values, references and links are planned by the graft itself."""
