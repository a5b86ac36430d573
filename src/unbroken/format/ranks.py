"""Records by which several processes of one run agree: who takes part, from where they go on, what they save.

All of them are create-only and lie below ``ranks/<epoch>/``, in the epoch of the first rank, which is the
coordinator: what a former start has left there is nobody's message any more.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from unbroken.format import signature as signatures
from unbroken.format import wire
from unbroken.format.digest import DigestField
from unbroken.format.manifest import DocumentEntry, FileName
from unbroken.format.meta import ComponentCost, ComponentFidelity
from unbroken.format.records import (
    BirthField,
    Count,
    DirectoryField,
    EpochField,
    Owner,
    Position,
    Record,
    StepField,
    WriteIdField,
)
from unbroken.format.signature import Signature
from unbroken.types import Epoch, Plain

WorldSize = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class Hello(Owner, frozen=True, kw_only=True, tag="hello"):
    """``hello/<rank>.json``: this process is rank `rank` and wants to take part. `nonce` is its own."""

    epoch: EpochField
    rank: Count
    world_size: WorldSize
    nonce: str


class Admission(Record, frozen=True, kw_only=True, tag="admission"):
    """``world.json``: the processes that take part, by the nonces of ranks 1, 2, …; or why nobody does.

    Where it refuses, an empty nonce stands for a rank that did not come.
    """

    epoch: EpochField
    write_id: WriteIdField
    world_size: WorldSize
    nonces: list[str] = []
    refusal: str = ""
    ranks: list[Count] = []
    """Whose fault a refusal is."""


class Proposal(Record, frozen=True, kw_only=True, tag="proposal"):
    """``start/<n>/proposal.json``: the coordinator wants to go on from this commit; 0: start afresh."""

    sequence: Count


class Ballot(Record, frozen=True, kw_only=True, tag="ballot"):
    """``start/<n>/<rank>.json``: what a rank says to a proposal, before it touches anything.

    ``unseen``: there is no such commit where it looks; ``damaged``: its part cannot be read; ``rejected``: it is whole,
    and not good enough. All three: take an older one. ``refused``: this rank cannot go on at all, for a reason that no
    other commit would change.
    """

    vote: Literal["ready", "unseen", "damaged", "rejected", "refused"]
    reason: str = ""
    differences: list[str] = []


class Verdict(Record, frozen=True, kw_only=True, tag="verdict"):
    """``start/<n>/verdict.json``: all go on with it, all wait for the next proposal, or all stop."""

    decision: Literal["go", "next", "stop"]
    reason: str = ""


class SaveOrder(Record, frozen=True, kw_only=True, tag="save-order"):
    """``saves/<n>/order.json``: every rank shall write what it has of this step, into this directory."""

    step: StepField
    segment: Count = 0
    position: Position = "step"
    write_id: WriteIdField
    directory: DirectoryField


class RankRecord(Owner, frozen=True, kw_only=True, tag="rank"):
    """``saves/<n>/<rank>.json``: what one rank has written is durable; or why it has written nothing."""

    rank: Count
    step: StepField
    write_id: WriteIdField
    refusal: str = ""
    full: bool = False
    """It refuses because no room was left for what it had to write."""
    documents: dict[FileName, DocumentEntry] = {}
    blobs: dict[DigestField, Count] = {}
    lists: dict[DigestField, Count] = {}
    """Chunk lists that the documents name, with how many chunks each has."""
    opaque: list[str] = []
    agree: dict[str, DigestField] = {}
    """Component -> digest of the document that this rank would have written of it."""
    birth: BirthField = ""
    good: bool = True
    nbytes: Count = 0
    status: dict[str, Plain] = {}
    """Plain facts: its process, its seed, the position in its queue, trajectories produced, …"""
    fidelity: dict[str, ComponentFidelity] = {}
    cost: dict[str, ComponentCost] = {}
    notes: list[str] = []
    signature: Signature | None = None
    """Of a part that holds pickles: whoever commits vouches only for what a holder of the same key has written."""


class Doubt(Record, frozen=True, kw_only=True, tag="doubt"):
    """``saves/<n>/doubt.json``: these components are not the same on these ranks, which shall say where."""

    components: list[str]
    """All that are doubted, those too that rank 0 does not have."""
    documents: dict[FileName, DocumentEntry]
    blobs: dict[DigestField, Count]
    ranks: list[Count]


class Finding(Record, frozen=True, kw_only=True, tag="finding"):
    """``saves/<n>/finding/<rank>.json``: where a rank differs from the coordinator, and how far."""

    rank: Count
    differences: list[str]


class Outcome(Record, frozen=True, kw_only=True, tag="outcome"):
    """``saves/<n>/outcome.json``: the checkpoint is committed under this number, or (0) it is not.

    `order` is the order that could not be given, where that was the reason.
    """

    sequence: Count
    order: SaveOrder | None = None
    reason: str = ""
    differing: list[str] = []


def signed(record: RankRecord, key: bytes) -> RankRecord:
    """Return the record with a signature under `key`."""
    return msgspec.structs.replace(record, signature=signatures.sign(key, _canonical(record)))


def is_vouched_for(record: RankRecord, key: bytes) -> bool:
    """Whether what the record names was written by a holder of `key`."""
    found = record.signature
    return found is not None and signatures.verify(key, _canonical(record), found)


def _canonical(record: RankRecord) -> bytes:
    return wire.encode(msgspec.structs.replace(record, signature=None), indent=0)


_ROOT = "ranks"


def folder(epoch: Epoch) -> str:
    """Return where the ranks of an epoch leave word.

    >>> folder(Epoch(7))
    'ranks/0000000007'
    """
    return f"{_ROOT}/{epoch:010d}"


def epoch_of(name: str) -> Epoch | None:
    """Return the epoch of a folder below ``ranks/``, None for a foreign name."""
    return Epoch(int(name)) if len(name) == 10 and name.isascii() and name.isdigit() else None


def hello(epoch: Epoch, rank: int) -> str:
    return f"{folder(epoch)}/hello/{rank:06d}.json"


def admission(epoch: Epoch) -> str:
    return f"{folder(epoch)}/world.json"


def start(epoch: Epoch, number: int) -> str:
    return f"{folder(epoch)}/start/{number:06d}"


def saves(epoch: Epoch) -> str:
    return f"{folder(epoch)}/saves"


def save(epoch: Epoch, number: int) -> str:
    return f"{saves(epoch)}/{number:010d}"


def of_rank(place: str, rank: int) -> str:
    """Return the key of what one rank says below `place`."""
    return f"{place}/{rank:06d}.json"


def rank_of(name: str) -> int | None:
    """Return the rank whose word an object of this name is, None for any other name."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot and suffix == "json" and len(stem) == 6 and stem.isdigit() else None
