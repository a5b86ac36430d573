"""What a capture gives and a restore takes: the components of a state, with their bytes in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from unbroken.errors import InternalError
from unbroken.state.nodes import Value
from unbroken.types import Digest, Fidelity

Bytes: TypeAlias = NDArray[np.uint8]
"""Raw bytes as a one-dimensional uint8 array."""


@dataclass(frozen=True, slots=True)
class Base:
    """A saved array: the name of its chunk list, its bytes, and those of a chunk."""

    name: Digest
    size: int
    chunk: int

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return -(-self.size // self.chunk)


@dataclass(frozen=True, slots=True)
class Rows:
    """The bytes of a ring's array, of which perhaps only what has changed was captured.

    `ranges` are (offset, bytes) in ascending order, each of whole chunks of `chunk` bytes (at the end of
    the array, of what is left). Everything outside of them is as in the saved array `base`, which has chunks
    of the same size; without a base they cover all of it.
    """

    size: int
    chunk: int
    ranges: tuple[tuple[int, Bytes], ...]
    base: Base | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that were captured."""
        return sum(content.nbytes for _, content in self.ranges)


Blob: TypeAlias = Union[Bytes, Rows]


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
    live: set[int] = field(default_factory=set)
    """Blobs that still lie in the memory of the training. None, once the snapshot owns its bytes."""
    saved: dict[int, Base] = field(default_factory=dict)
    """Blob -> what it is saved as, where it has a chunk list and was read or written."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, uncompressed, whether or not they were captured."""
        return sum(blob.size for blob in self.blobs)

    @property
    def captured(self) -> int:
        """Bytes of arrays that were captured: of a ring perhaps only what has changed."""
        return sum(blob.nbytes for blob in self.blobs)

    def content(self, i: int) -> Bytes:
        """Return the bytes of blob `i`, all of which must have been captured."""
        blob = self.blobs[i]
        if isinstance(blob, Rows):
            if blob.base is not None:
                raise InternalError(f"Blob {i} of {self.name} was captured in part.")
            ranges = [content for _, content in blob.ranges]
            return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)
        return blob


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


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """By what the environments of a snapshot can be rebuilt: the component as a journal has it, which shares
    nothing with live objects; the digest of the component as the snapshot has it; and why it is good for nothing,
    empty if it is."""

    component: Component
    state: Digest
    problem: str = ""


Recheck: TypeAlias = Callable[[Collection["tuple[str, int]"]], "list[tuple[str, int]]"]
"""Takes and returns blobs, each by its component and its number there."""


@dataclass(slots=True)
class Snapshot:
    """The whole state at one clean point.

    A true one shares nothing with live objects. One that `is_live` does, until `staging` has copied
    what is left in the memory of the training; nobody may train before.
    """

    components: dict[str, Component] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    promises: dict[str, Promise] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """By component: how long training stood still for it, to have it walked and copied."""
    counters: dict[str, Any] = field(default_factory=dict)
    """Plain facts for `meta.json`: `episodes`, `env_seeds`, `worker_status`, learning rate, …"""
    journal: JournalEntry | None = None
    """What goes into the journal beside it, where one is kept."""
    recheck: Recheck | None = None
    """Says which blobs do not have the digests any more that they were read with; None: nobody can tell."""
    adoptable: bool = False
    """Whether nobody needs it after a restore: arrays that the program does not have yet are then not
    copied; their memory becomes part of the live state. Comparing them tells nothing, `recheck` does."""
    python: str = ""
    """The version of the Python that wrote it, where it was read; empty if nobody can tell."""

    @property
    def is_live(self) -> bool:
        """Whether contents still lie in the memory of the training."""
        return any(component.live for component in self.components.values())


def component_of(place: str, snapshot: Snapshot) -> str:
    """Return the component that holds what stands at a place."""
    best, length = next(iter(snapshot.components)), -1
    for name, component in snapshot.components.items():
        for root in component.roots:
            if (place == root or place.startswith(root + "/")) and len(root) > length:
                best, length = name, len(root)
    return best
