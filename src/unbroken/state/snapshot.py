"""What a capture gives and a restore takes: the components of a state, with their bytes in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unbroken.state.nodes import Value
from unbroken.types import Fidelity

Blob: TypeAlias = NDArray[np.uint8]
"""Raw bytes as a one-dimensional uint8 array. Owned by the snapshot: nobody else writes to it."""


@dataclass(slots=True)
class Component:
    """A named top part of the state, loadable alone.

    `roots` maps the global place of each object that opens this component to its node. Blob indices
    in the nodes count into `blobs`. `tensors` maps the place of each module to its table, `state_dict`
    name to place, as far as its tensors lie in this component: weights load without the rest.
    """

    name: str
    roots: dict[str, Value] = field(default_factory=dict)
    blobs: list[Blob] = field(default_factory=list)
    tensors: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes in blobs, uncompressed."""
        return sum(blob.nbytes for blob in self.blobs)


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person should know about a place: kept from outside, opaque, approximate, …"""

    kind: str
    place: str
    detail: str


@dataclass(frozen=True, slots=True)
class Promise:
    """What one component promises after a restore, with the reason where it is not exact."""

    fidelity: Fidelity
    reason: str = ""


@dataclass(slots=True)
class Snapshot:
    """The whole state at one clean point. True: nothing in it is shared with live objects."""

    components: dict[str, Component] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    promises: dict[str, Promise] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)
    """Plain facts for `meta.json`: `episodes`, `env_seeds`, `worker_status`, learning rate, …"""
