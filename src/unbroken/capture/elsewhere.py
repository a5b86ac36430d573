"""The state of another process: captured there, planned there, written there; here it is a `Scope`.

Both sides are plain functions over records, so that an adapter may carry them over whatever its framework
has (a pipe, an actor). A capture over there answers with a document and its bytes. A restore first plans
in every process and touches nothing; only when all have agreed does any of them write.

Not promised: anything about how the answer travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from unbroken.state import graft as grafts
from unbroken.state import walk as walks
from unbroken.state.graft import Difference, Graft
from unbroken.state.nodes import Scope, Value
from unbroken.state.pickles import Trust
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Bytes, Component, Snapshot
from unbroken.state.walk import Walk

_documents = msgspec.msgpack.Decoder(dict[str, Value])


@dataclass(slots=True)
class Captured:
    """The state of a process, as it travels."""

    document: bytes = b""
    blobs: list[Bytes] = field(default_factory=list[Bytes])
    notes: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Kind, place and detail of each."""


@dataclass(slots=True)
class Restore:
    """What a process is to be brought to, as it travels."""

    document: bytes
    blobs: list[Bytes]
    keep: list[str]
    """Places at which what the process has stays."""
    trusted: Trust = False


def in_one_document(policy: Policy) -> Policy:
    """Return a policy under which no part opens a component of its own."""
    return replace(policy, components={}, component_keys={})


def captured(roots: Mapping[str, object], policy: Policy, *, contents: bool) -> Captured:
    """There: walk this process's `roots`, under a policy that is `in_one_document`."""
    snapshot = walks.capture(roots, policy, contents=contents)
    (component,) = snapshot.components.values()
    return Captured(
        msgspec.msgpack.encode(component.roots),
        [component.content(i) for i in range(len(component.blobs))],
        [(note.kind, note.place, note.detail) for note in snapshot.notes],
    )


def planned(roots: Mapping[str, object], policy: Policy, restore: Restore) -> Graft:
    """There: lay a saved state over this process's `roots`. Touches nothing."""
    component = Component(walks.ROOT_COMPONENT, _documents.decode(restore.document), [*restore.blobs])
    saved = Snapshot({component.name: component})
    return grafts.plan(saved, roots, policy, keep=restore.keep, trusted=restore.trusted)


def scope_of(state: Captured, name: str, walk: Walk) -> Scope:
    """Here: return the node of a process that is called `name`."""
    for kind, place, detail in state.notes:
        walk.note(kind, f"{name}, {place}: {detail}")
    blobs = [walk.adopt(blob) for blob in state.blobs]
    return Scope(p=name, roots=_documents.decode(state.document), blobs=blobs)


def restore_of(scope: Scope, inside: str, graft: Graft) -> Restore:
    """Here: return what to send for a scope that stands at the place `inside`."""
    blobs = [graft.bytes_of(blob, b"") for blob in scope.blobs]
    return Restore(msgspec.msgpack.encode(scope.roots), blobs, graft.kept_below(inside), graft.trusted)


def tell(differences: Sequence[tuple[str, str, str]], inside: str, graft: Graft) -> None:
    """Here: add what a plan over there has found to the plan here."""
    graft.differences += [Difference(level, f"{inside}/{place}", what) for level, place, what in differences]
