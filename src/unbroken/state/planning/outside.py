"""What does not travel as itself: kept from the twin, pickled, or of another process."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from unbroken.errors import CorruptObject, Untrusted
from unbroken.state import pickles
from unbroken.state.nodes import PLAIN, External, Opaque, Scope
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft


def plan_external(graft: Graft, node: External, twin: object) -> Any:
    if twin is MISSING or type(twin) in PLAIN:
        cls = graft.loaded_class(node.c, MISSING)
        stateless = cls is not None and graft.facts(cls).stateless
        graft.note(
            "lost" if stateless else "forgotten",
            f"{node.c} lives outside of checkpoints and has no counterpart here.",
        )
        return graft.bind(node, None)
    return graft.bind(node, twin)


def plan_opaque(graft: Graft, node: Opaque, twin: object) -> Any:
    if not graft.trusted:
        graft.note("untrusted", f"{node.c} is pickled, and the checkpoint is not trusted.")
        return graft.bind(node, None if twin is MISSING else twin)
    data = graft.bytes_of(node.b, node.data).tobytes()
    try:
        value = pickles.load(data, graft.trusted)
    except Untrusted as error:
        graft.note("untrusted", f"{node.c}: {error.message}")
        return graft.bind(node, None if twin is MISSING else twin)
    except Exception as error:  # noqa: BLE001 - a class that moved, a constructor that refuses: anything
        value = graft.refuse(_unreadable(node.c, graft.saved.python, error), twin)
    return graft.bind(node, value)


def _unreadable(name: str, wrote: str, error: Exception) -> str:
    """Say that a pickle cannot be read, and which Python wrote it: between two of them classes move, and code changes."""
    here = platform.python_version()
    pickled = (
        f"was pickled by Python {wrote} and cannot be read by {here}"
        if wrote
        else f"cannot be read by Python {here}"
    )
    why = error.message if isinstance(error, CorruptObject) else f"{type(error).__name__}: {error}"
    return f"{name} {pickled}: {why}"


def plan_scope(graft: Graft, _: Scope, twin: object) -> Any:
    return graft.refuse("holds the state of another process, which nothing here restores.", twin)
