"""What a checkpoint is made of: its components, and in each the arrays that are largest.

Read from the documents; no array is read. Bytes are uncompressed, as the state has them, shared ones included.
Stable: the names and fields here.

Not promised: what a component takes on the disk, unless its cost is given (`repo.usage`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unbroken.format.document import Document
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.repo.usage import CheckpointCost
from unbroken.state.nodes import Node, Value, children, escape
from unbroken.state.parts import split_name

LARGEST = 12
"""So many arrays of a component are named; the others are one part."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a component: an array by its place, or what is left. `nbytes`: uncompressed."""

    place: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """A component. Sizes in bytes."""

    component: str
    """Its full name, with the rank where several ranks have one."""
    label: str
    rank: int | None
    fidelity: str
    """exact, approximate, not captured; empty: unknown."""
    reason: str
    """Why it is not exact."""
    nbytes: int
    """Its document and its arrays, uncompressed."""
    stored: int | None
    """What it takes on the disk; None: not measured."""
    pieces: tuple[Piece, ...]
    """The largest first. Together they are `nbytes`."""


def makeup(repository: Repository, commit: Commit, cost: CheckpointCost | None = None) -> tuple[Share, ...]:
    """Return the components of a checkpoint, the largest first.

    Raises:
        CorruptObject: the manifest, the metadata or a document is damaged or missing.
    """
    promises = repository.meta(commit).fidelity
    costs = {} if cost is None else cost.components
    found: list[Share] = []
    for entry in repository.manifest(commit).documents.values():
        document = repository.document(commit, entry.component)
        label, rank = split_name(entry.component)
        promise = promises.get(entry.component)
        nbytes = entry.size + sum(blob.size for blob in document.blobs)
        own = costs.get(entry.component)
        found.append(
            Share(
                component=entry.component,
                label=label if rank is None else f"{label} (rank {rank})",
                rank=rank,
                fidelity=promise.fidelity.value if promise else "",
                reason=promise.reason if promise else "",
                nbytes=nbytes,
                stored=None if own is None else own.stored,
                pieces=_pieces(document, nbytes),
            )
        )
    return tuple(sorted(found, key=lambda share: (-share.nbytes, share.component)))


def _pieces(document: Document, nbytes: int) -> tuple[Piece, ...]:
    sizes: dict[int, Piece] = {}
    for place, blob in _blobs(document.roots):
        if blob not in sizes and blob < len(document.blobs):
            sizes[blob] = Piece(place, document.blobs[blob].size)
    largest = sorted(sizes.values(), key=lambda piece: (-piece.nbytes, piece.place))[:LARGEST]
    rest = nbytes - sum(piece.nbytes for piece in largest)
    return (*largest, *([Piece("everything else" if largest else "its document", rest)] if rest else []))


def _blobs(roots: Mapping[str, Value]) -> Iterator[tuple[str, int]]:
    """Yield the place and the number of each blob that a tree names."""
    stack: list[tuple[str, Value]] = list(reversed(list(roots.items())))
    while stack:
        place, value = stack.pop()
        if not isinstance(value, Node):
            continue
        blob = getattr(value, "b", -1)
        if isinstance(blob, int) and blob >= 0:
            yield place, blob
        stack.extend(
            (f"{place}/{escape(key)}", child) for key, child in reversed(list(children(value)))
        )  # fmt: skip
