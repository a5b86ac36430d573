"""What is known of a checkpoint while it is being written."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.format.manifest import RankPart
from unbroken.format.meta import Meta
from unbroken.format.pack import PackIndex
from unbroken.format.ranks import RankRecord, SaveOrder
from unbroken.repo.chunklists import References
from unbroken.repo.coordinator import Coordinator
from unbroken.repo.encoding import EncodedComponent
from unbroken.types import Digest


@dataclass(slots=True)
class Attempt:
    """One save on its way: what it has written so far, and whether the commit may have happened."""

    order: SaveOrder
    joined: tuple[RankRecord, ...] = ()
    """What others have written for it already."""
    ranks: tuple[RankPart, ...] = ()
    coordinator: Coordinator | None = None
    """Who asks other ranks for their parts; None where nobody has to be asked."""
    written: list[str] = field(default_factory=list[str])
    packs: list[str] = field(default_factory=list[str])
    in_doubt: bool = False

    @property
    def directory(self) -> str:
        return self.order.directory


@dataclass(frozen=True, slots=True)
class Joint:
    """What several processes have written of a checkpoint, each for itself, under one order.

    For frameworks that carry words between their processes by themselves; see `CheckpointWriter.order`.
    """

    order: SaveOrder
    records: tuple[RankRecord, ...]


@dataclass(slots=True)
class Written:
    """What one save has put, filled in as its objects are consumed."""

    indexes: list[PackIndex] = field(default_factory=list[PackIndex])
    parts: list[EncodedComponent] = field(default_factory=list[EncodedComponent])
    meta: Meta = field(init=False)
    manifest_digest: Digest = field(init=False)
    references: References = field(init=False)
    """What the checkpoint needs, but for chunk lists that other ranks have written."""
    elsewhere: dict[Digest, int] = field(default_factory=dict[Digest, int])
    """Those, with their numbers of chunks."""
