"""``journal/…``: by what the environments of one checkpoint can be rebuilt. See docs/format.md.

An entry is a header of eight bytes with the length of the record that follows, little-endian; the record; and
the document with its blobs, whose digest the record holds. It needs no pack, and no other object of the run.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from unbroken.errors import CorruptObject
from unbroken.format import document
from unbroken.format.digest import DigestField, digest_of, matches
from unbroken.format.records import Commit, Count, Position, Record, StepField
from unbroken.state.snapshot import Bytes, Component
from unbroken.types import Digest

JOURNAL = "journal"
HEADER_BYTES = 8
LARGEST_HEADER = 1 << 24


class JournalRecord(Record, frozen=True, kw_only=True, tag="journal"):
    """What an entry is about, and what follows it.

    `state` is the digest of the environments as the checkpoint has them: what is rebuilt must have it. `problem`
    says why nothing can be rebuilt from this entry; empty if it can.
    """

    step: StepField
    segment: Count
    position: Position
    time: float
    state: DigestField
    document: Count
    """Bytes of the document."""
    blobs: list[Count]
    """Bytes of each blob, which follow it in this order."""
    content: DigestField
    problem: str = ""


class Moment(msgspec.Struct, frozen=True):
    """What a checkpoint and its entry have in common."""

    step: int
    segment: int
    position: Position
    time: float

    @classmethod
    def of(cls, about: Commit | JournalRecord) -> Moment:
        """Return the moment of a commit, or of a record."""
        return cls(about.step, about.segment, about.position, about.time)

    @property
    def key(self) -> str:
        """The name of the entry."""
        said = f"{self.segment} {self.step} {self.position} {float(self.time).hex()}"
        return f"{JOURNAL}/step_{self.step:012d}-{digest_of(said.encode())[-16:]}"


def fingerprint(component: Component) -> Digest:
    """Return the digest of a component with all its contents."""
    return digest_of([document.encode(component, (), "msgpack"), *_contents(component)])


def payload(component: Component) -> tuple[bytes, list[bytes]]:
    """Return the document of a component, and its blobs."""
    return document.encode(component, (), "msgpack"), _contents(component)


def _contents(component: Component) -> list[bytes]:
    return [component.content(i).tobytes() for i in range(len(component.blobs))]


def split(data: bytes, *, key: str) -> tuple[bytes, memoryview]:
    """Return the record of an entry, and what follows it.

    Raises:
        CorruptObject: it is cut off.
    """
    length = int.from_bytes(data[:HEADER_BYTES], "little")
    if len(data) < HEADER_BYTES or length > min(LARGEST_HEADER, len(data) - HEADER_BYTES):
        raise CorruptObject(f"{key} is cut off.", key=key)
    return data[HEADER_BYTES : HEADER_BYTES + length], memoryview(data)[HEADER_BYTES + length :]


def component_of(record: JournalRecord, content: memoryview, *, key: str) -> Component:
    """Return the component in an entry.

    Raises:
        CorruptObject: it is damaged.
    """
    if content.nbytes != record.document + sum(record.blobs) or not matches(content, Digest(record.content)):
        raise CorruptObject(f"{key} is damaged: its digest does not fit.", key=key)
    blobs: list[bytes] = []
    at = record.document
    for size in record.blobs:
        blobs.append(bytes(content[at : at + size]))
        at += size
    return from_parts(bytes(content[: record.document]), blobs, key=key)


def from_parts(text: bytes, blobs: Iterable[bytes], *, key: str = "") -> Component:
    """Return the component that `payload` has taken apart.

    Raises:
        CorruptObject: its document cannot be read.
    """
    tree = document.decode(text, "msgpack", key=key)
    # Copied: what a restore takes over is written to.
    arrays: list[Bytes] = [np.array(np.frombuffer(blob, np.uint8)) for blob in blobs]
    return Component(tree.component, roots=tree.roots, tensors=tree.tensors, blobs=[*arrays])
