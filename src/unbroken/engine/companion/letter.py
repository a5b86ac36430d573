"""A save in a form that travels to another process: complete in memory that outlives its writer.

Two pieces of memory without a name: the staging, where most bytes of the snapshot lie already, and the
letter, which holds everything else: bytes that were not staged, the trees, and what is to be done. Their
descriptors are sent in one message. The kernel keeps all of it from then on, so a kill of the sender loses
nothing, and before that nothing has happened.

The trees are written as documents (`format.document`) without blobs. Both ends are the same version
of this package: the letter is no format that lasts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from unbroken.engine.companion.places import places_as_bytes, places_of_bytes
from unbroken.engine.keeping import Keeping
from unbroken.engine.saving import Order
from unbroken.errors import InternalError
from unbroken.format import document
from unbroken.format import meta as metas
from unbroken.format.buffers import Buffer
from unbroken.format.compression import Compression
from unbroken.repo.pen import Pen
from unbroken.state.shared import SharedMemory, read_shared
from unbroken.state.snapshot import Base, Blob, Bytes, Component, Rows, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An order, and what it takes to carry it out elsewhere. `inspector` is a function, ``module:name``."""

    root: str
    job: str
    pen: Pen
    order: Order
    compression: Compression = field(default_factory=Compression)
    inspector: str = ""


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """Bytes at an offset of the staging, or of what follows the trees in the letter."""

    staged: bool
    offset: int
    size: int


class _Blob(msgspec.Struct, frozen=True, array_like=True):
    """One piece, or `Rows` where `chunk` is not 0."""

    parts: list[tuple[int, _Part]]
    size: int = 0
    chunk: int = 0
    base: Base | None = None


class _Component(msgspec.Struct, frozen=True, array_like=True):
    document: bytes
    blobs: list[_Blob]


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    root: bytes
    """As the file system has it, since a path need not be text."""
    job: str
    pen: Pen
    meta: bytes
    keeping: Keeping
    sick: list[bytes] | None
    sick_from_birth: list[bytes] | None
    compression: Compression
    inspector: str
    components: list[_Component]


_HEADER_BYTES = 8
_DECODER = msgspec.msgpack.Decoder(_Content)


@dataclass(frozen=True, slots=True)
class Letter:
    """Descriptors of memory that holds one save. The letter's own is closed by `close`."""

    own: int
    staging: int

    @property
    def descriptors(self) -> list[int]:
        """What to send."""
        return [self.own, self.staging] if self.staging >= 0 else [self.own]

    def close(self) -> None:
        """Let go of the letter. Who has received it keeps it."""
        os.close(self.own)


class Draft:
    """A letter with everything but the work. Of what lies in `staging` it has only the place.

    Raises NotCapturable if the state is nested too deeply.
    """

    def __init__(self, snapshot: Snapshot, staging: SharedMemory) -> None:
        self._staging = staging
        self._loose = _Loose(staging)
        self._components = [
            _Component(
                document.encode(component, (), "msgpack"),
                [self._loose.place_blob(blob) for blob in component.blobs],
            )
            for component in snapshot.components.values()
        ]

    def finish(self, work: Work) -> Letter:
        """Put all into memory.

        Raises OSError if there is no memory or no descriptor left.
        """
        order = work.order
        content = msgspec.msgpack.encode(
            _Content(
                root=os.fsencode(work.root),
                job=work.job,
                pen=work.pen,
                meta=metas.encode(order.meta),
                keeping=order.keeping,
                sick=None if order.sick is None else places_as_bytes(order.sick),
                sick_from_birth=None
                if order.sick_from_birth is None
                else places_as_bytes(order.sick_from_birth),
                compression=work.compression,
                inspector=work.inspector,
                components=self._components,
            )
        )
        own = os.memfd_create("unbroken-letter")
        try:
            _write_all(own, [*_framed(content), *self._loose.pieces])
        except BaseException:
            os.close(own)
            raise
        return Letter(own, self._staging.descriptor)


def read_letter(descriptors: list[int]) -> tuple[Work, Snapshot]:
    """Return the save that was sent. Its bytes lie where the sender has put them, to be read only."""
    letter = read_shared(descriptors[0])
    staged = read_shared(descriptors[1]) if len(descriptors) > 1 else np.empty(0, np.uint8)
    end = _HEADER_BYTES + int.from_bytes(letter[:_HEADER_BYTES].tobytes(), "little")
    content = _DECODER.decode(letter[_HEADER_BYTES:end].data)
    memory = (letter[end:], staged)
    snapshot = Snapshot()
    for one in content.components:
        tree = document.decode(one.document, "msgpack")
        snapshot.components[tree.component] = Component(
            tree.component,
            roots=tree.roots,
            tensors=tree.tensors,
            blobs=[_found_blob(blob, memory) for blob in one.blobs],
        )
    order = Order(
        meta=metas.decode(content.meta),
        keeping=content.keeping,
        sick=None if content.sick is None else places_of_bytes(content.sick),
        sick_from_birth=None if content.sick_from_birth is None else places_of_bytes(content.sick_from_birth),
    )
    work = Work(
        root=os.fsdecode(content.root),
        job=content.job,
        pen=content.pen,
        order=order,
        compression=content.compression,
        inspector=content.inspector,
    )
    return work, snapshot


class _Loose:
    """Finds out where bytes lie, and gathers those that are not staged."""

    def __init__(self, staging: SharedMemory) -> None:
        self.pieces: list[Buffer] = []
        self._staging = staging
        self._end = 0

    def place_blob(self, blob: Blob) -> _Blob:
        if isinstance(blob, Rows):
            parts = [(start, self._place(content)) for start, content in blob.ranges]
            return _Blob(parts, blob.size, blob.chunk, blob.base)
        return _Blob([(0, self._place(blob))])

    def _place(self, content: Bytes) -> _Part:
        offset = self._staging.offset_of(content)
        if offset is not None:
            return _Part(True, offset, content.nbytes)
        at, self._end = self._end, self._end + content.nbytes
        self.pieces.append(content.data)
        return _Part(False, at, content.nbytes)


def _found_blob(blob: _Blob, memory: tuple[Bytes, Bytes]) -> Blob:
    found = [
        (start, memory[part.staged][part.offset : part.offset + part.size]) for start, part in blob.parts
    ]
    if blob.chunk:
        return Rows(blob.size, blob.chunk, tuple(found), blob.base)
    return found[0][1]


def _framed(content: bytes) -> tuple[bytes, bytes]:
    return len(content).to_bytes(_HEADER_BYTES, "little"), content


def _write_all(descriptor: int, pieces: Iterable[Buffer]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            written = os.write(descriptor, view)
            if not written:
                raise InternalError("Memory took nothing of a letter.")
            view = view[written:]
