"""Packs: many blobs in one object, and the index that says where each lies.

One durable write a save instead of one a blob: 200 chunks cost 12 ms instead of 600. Each entry
describes itself, so a pack can be read without its index, and a pack that was cut off can be read up
to the cut. The layout (docs/format.md gives it byte by byte):

    header | entry* | index | tail

The index object beside a pack (``.idx``) has the same bytes as the index inside. A pack is written as
a stream; at no time more than one blob of it is held.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec

from unbroken.errors import CorruptObject, InternalError, UnsupportedFormat
from unbroken.format.buffers import Buffer
from unbroken.format.compression import BlobCodec, decompress
from unbroken.format.digest import Algorithm, DigestField, join, matches, split
from unbroken.format.records import Count
from unbroken.format.wire import FORMAT_VERSION, check_version
from unbroken.types import Digest

MAX_BLOB = 1 << 30
"""No blob in a pack is larger; chunks are far smaller. Readers refuse before they allocate."""

_PACK_MAGIC = b"UNBRPACK"
_ENTRY_MAGIC = b"BLOB"
_INDEX_MAGIC = b"UNBRINDX"
_TAIL_MAGIC = b"UNBREND\n"

_HEADER = struct.Struct("<8sHHI")  # magic, version, flags, reserved
_ENTRY = struct.Struct(
    "<4sBBHQQ32sI"
)  # magic, algorithm, codec, reserved, stored, raw, digest, crc of stored
_CRC = struct.Struct("<I")
_INDEX = struct.Struct("<8sHHI")  # magic, version, flags, crc of the body
_TAIL = struct.Struct("<QQI8s")  # index offset, index size, crc of both, magic

HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size + _CRC.size
TAIL_BYTES = _TAIL.size

_ALGORITHMS = (Algorithm.BLAKE3, Algorithm.SHA256)
_CODECS = (BlobCodec.RAW, BlobCodec.ZSTD, BlobCodec.GZIP)


class PackEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where one blob lies in a pack: `offset` of its entry header; `crc` of the stored bytes,
    0 where they are raw."""

    digest: DigestField
    offset: Count
    codec: BlobCodec
    stored: Count
    raw: Count
    crc: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    @property
    def length(self) -> int:
        """Bytes of header and stored bytes together: what to read to get the blob."""
        return ENTRY_BYTES + self.stored


class PackIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack holds."""

    pack: str
    entries: list[PackEntry]


class PackWriter:
    """Turns blobs into the bytes of one pack.

    >>> from unbroken.format.digest import digest_of
    >>> writer = PackWriter("p1")
    >>> data = b"".join(writer.stream([(digest_of(b"abc"), 3, BlobCodec.RAW, b"abc")]))
    >>> writer.index().entries[0].offset
    16
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entries: list[PackEntry] = []
        self._finished = False
        self.size = 0

    def stream(self, blobs: Iterable[tuple[Digest, int, BlobCodec, Buffer]]) -> Iterator[Buffer]:
        """Yield the pack's bytes for blobs given as (digest, raw size, codec, stored bytes)."""
        if self.size:
            raise InternalError("A pack writer writes one pack.")
        yield self._count(_HEADER.pack(_PACK_MAGIC, FORMAT_VERSION, 0, 0))
        for digest, raw, codec, stored in blobs:
            view = memoryview(stored).cast("B")
            # Raw bytes are what the digest is of; a second check of them would cost as much as a copy.
            crc = 0 if codec is BlobCodec.RAW else zlib.crc32(view)
            entry = PackEntry(digest, self.size, codec, view.nbytes, raw, crc)
            self._entries.append(entry)
            yield self._count(_entry_header(entry))
            yield self._count(view)
        offset = self.size
        body = encode_index(PackIndex(pack=self._name, entries=self._entries))
        yield self._count(body)
        yield self._count(_tail(offset, len(body)))
        self._finished = True

    def index(self) -> PackIndex:
        """Return the index, once the stream has been used up."""
        if not self._finished:
            raise InternalError("The pack is not finished.")
        return PackIndex(pack=self._name, entries=list(self._entries))

    def _count(self, data: Buffer) -> Buffer:
        self.size += len(data)
        return data


def read_blob(data: bytes, *, key: str = "") -> tuple[Digest, bytes]:
    """Return digest and bytes of the blob whose entry (header and stored bytes) is `data`: no index is needed.

    Everything is checked: header, stored bytes, size and digest.
    """
    entry = _parse_entry(data, 0, key=key)
    target = bytearray(entry.raw)
    unpack(memoryview(data)[ENTRY_BYTES : entry.length], entry, memoryview(target), key=key)
    return entry.digest, bytes(target)


def check_entry(head: Buffer, entry: PackEntry, *, key: str = "") -> None:
    """Raise `CorruptObject` unless the header of an entry says what the index says."""
    if _parse_entry(head, entry.offset, key=key) != entry:
        raise CorruptObject(f"{key} differs from its index at {entry.offset}.", key=key, digest=entry.digest)


def unpack(stored: Buffer, entry: PackEntry, target: memoryview, *, key: str = "") -> None:
    """Fill `target`, which has room for the blob, from its stored bytes; `CorruptObject` if they are not whole.

    Stored bytes, size and digest are checked. A raw blob may lie in `target` already; of its stored bytes
    the digest says all that their checksum could.
    """
    try:
        if entry.codec is not BlobCodec.RAW and zlib.crc32(stored) != entry.crc:
            raise _damaged(key, entry)
        decompress(entry.codec, stored, target)
    except CorruptObject as error:
        raise _damaged(key, entry) from error
    if not matches(target, entry.digest):
        raise _damaged(key, entry)


def encode_index(index: PackIndex) -> bytes:
    """Return the bytes of an index object."""
    body = msgspec.msgpack.encode(index)
    return _INDEX.pack(_INDEX_MAGIC, FORMAT_VERSION, 0, zlib.crc32(body)) + body


def decode_index(data: bytes, *, key: str = "") -> PackIndex:
    """Return the index in `data`."""
    if len(data) < _INDEX.size:
        raise CorruptObject(f"{key or 'An index'} is cut off.", key=key)
    magic, version, flags, crc = _INDEX.unpack_from(data)
    if magic != _INDEX_MAGIC:
        raise CorruptObject(f"{key or 'An object'} is not an index.", key=key)
    _check_version(version, flags, key)
    body = data[_INDEX.size :]
    if zlib.crc32(body) != crc:
        raise CorruptObject(f"{key or 'An index'} is damaged.", key=key)
    try:
        index = msgspec.msgpack.decode(body, type=PackIndex)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptObject(f"{key or 'An index'} is not readable: {error}.", key=key) from error
    for entry in index.entries:
        _check_sizes(entry, key)
    return index


Read = Callable[[int, int], bytes]
"""Reads (offset, length) of a pack; fewer bytes only at its end."""


def read_index(read: Read, size: int, *, key: str = "") -> PackIndex:
    """Return the index that stands at the end of a pack of `size` bytes."""
    _check_header(read(0, HEADER_BYTES), key)
    tail = read(max(0, size - TAIL_BYTES), TAIL_BYTES)
    if len(tail) != TAIL_BYTES or size < HEADER_BYTES + TAIL_BYTES:
        raise CorruptObject(f"{key or 'A pack'} is cut off.", key=key)
    offset, length, crc, magic = _TAIL.unpack(tail)
    if magic != _TAIL_MAGIC or zlib.crc32(tail[:16]) != crc or offset + length + TAIL_BYTES != size:
        raise CorruptObject(f"{key or 'A pack'} has no readable end.", key=key)
    return decode_index(read(offset, length), key=key)


def scan(read: Read, *, key: str = "") -> Iterator[PackEntry]:
    """Yield the entries of a pack from its beginning, by their own headers.

    Needs neither index nor tail. Ends at the index, or silently where the pack is cut off inside an
    entry: what was yielded before is whole as far as headers can say. A damaged header is an error.
    """
    _check_header(read(0, HEADER_BYTES), key)
    offset = HEADER_BYTES
    while True:
        head = read(offset, ENTRY_BYTES)
        if head[:8] == _INDEX_MAGIC or len(head) < ENTRY_BYTES:
            return
        entry = _parse_entry(head, offset, key=key)
        offset += entry.length
        if entry.length and not read(offset - 1, 1):
            return
        yield entry


def _entry_header(entry: PackEntry) -> bytes:
    algorithm, raw = split(entry.digest)
    head = _ENTRY.pack(
        _ENTRY_MAGIC,
        _ALGORITHMS.index(algorithm) + 1,
        _CODECS.index(entry.codec),
        0,
        entry.stored,
        entry.raw,
        raw,
        entry.crc,
    )
    return head + _CRC.pack(zlib.crc32(head))


def _parse_entry(head: Buffer, offset: int, *, key: str) -> PackEntry:
    if len(head) < ENTRY_BYTES:
        raise CorruptObject(f"{key or 'A pack'} is cut off at {offset}.", key=key)
    fields: tuple[bytes, int, int, int, int, int, bytes, int] = _ENTRY.unpack_from(head)
    magic, algorithm, codec, _, stored, raw, digest, crc = fields
    if magic != _ENTRY_MAGIC or zlib.crc32(head[: _ENTRY.size]) != _CRC.unpack_from(head, _ENTRY.size)[0]:
        raise CorruptObject(f"{key or 'A pack'} is damaged at {offset}.", key=key)
    if not 1 <= algorithm <= len(_ALGORITHMS) or codec >= len(_CODECS):
        raise UnsupportedFormat(
            f"{key or 'A pack'} uses a digest or compression this Unbroken lacks.", hint="Upgrade unbroken."
        )
    entry = PackEntry(join(_ALGORITHMS[algorithm - 1], digest), offset, _CODECS[codec], stored, raw, crc)
    _check_sizes(entry, key)
    return entry


def _tail(offset: int, length: int) -> bytes:
    crc = zlib.crc32(struct.pack("<QQ", offset, length))
    return _TAIL.pack(offset, length, crc, _TAIL_MAGIC)


def _check_header(head: bytes, key: str) -> None:
    if len(head) < HEADER_BYTES or head[:8] != _PACK_MAGIC:
        raise CorruptObject(f"{key or 'An object'} is not a pack.", key=key)
    _, version, flags, reserved = _HEADER.unpack_from(head)
    _check_version(version, flags or reserved, key)


def _check_version(version: int, flags: int, key: str) -> None:
    check_version(version, key=key)
    if flags:
        raise UnsupportedFormat(
            f"{key or 'A pack'} needs features this Unbroken lacks ({flags:#x}).", hint="Upgrade unbroken."
        )


def _check_sizes(entry: PackEntry, key: str) -> None:
    if max(entry.stored, entry.raw) > MAX_BLOB or (
        entry.codec is BlobCodec.RAW and entry.stored != entry.raw
    ):
        raise CorruptObject(
            f"{key or 'A pack'} announces an impossible size at {entry.offset}.", key=key, digest=entry.digest
        )


def _damaged(key: str, entry: PackEntry) -> CorruptObject:
    return CorruptObject(
        f"Blob {entry.digest[:19]} in {key or 'a pack'} is damaged.", key=key, digest=entry.digest
    )


__all__ = [
    "ENTRY_BYTES", "HEADER_BYTES", "MAX_BLOB", "TAIL_BYTES", "PackEntry", "PackIndex", "PackWriter",
    "check_entry", "decode_index", "encode_index", "read_blob", "read_index", "scan", "unpack",
]  # fmt: skip
