"""Compression of blobs: a codec a blob, chosen by trying.

Weights hardly compress (1.08), frames do (25 and more): so the first 16 KiB decide. Decompression
never gives more bytes than were announced, whatever the input.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from enum import Enum
from io import BufferedIOBase
from typing import cast

import zstandard

from unbroken.errors import ConfigError, CorruptObject, UnsupportedFormat
from unbroken.format.buffers import Buffer

PROBE_BYTES = 16 * 1024
WORTH = 1.05
"""Smallest ratio for which bytes are stored compressed."""
WORTH_IN_BULK = 2.0
"""The same where much is written to a disk: what compresses less is written sooner than it is compressed."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_GZIP_PIECE = 1 << 16
"""Bytes that zlib, which writes to no memory but its own, decompresses at a time."""


class _Decompressors(threading.local):
    """Each thread's own: to make one takes fresh memory, and it serves one stream at a time."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_decompressors = _Decompressors()


class BlobCodec(str, Enum):
    """How stored bytes were made from a blob. The values stand in packs and never change."""

    RAW = "raw"
    ZSTD = "zstd"
    GZIP = "gzip"


_LEVELS = {BlobCodec.RAW: range(1), BlobCodec.ZSTD: range(1, 23), BlobCodec.GZIP: range(1, 10)}
_DEFAULT_LEVEL = {BlobCodec.RAW: 0, BlobCodec.ZSTD: 1, BlobCodec.GZIP: 6}


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec and its level; level None takes the codec's default.

    `by_speed`: what is compressed less than a disk gains by it is stored raw. Else all that gets smaller is.

    >>> Compression(BlobCodec.GZIP).level
    6
    """

    codec: BlobCodec = BlobCodec.ZSTD
    level: int | None = None
    by_speed: bool = True

    def __post_init__(self) -> None:
        if self.codec not in _LEVELS:
            known = ", ".join(codec.value for codec in BlobCodec)
            raise ConfigError(f"{self.codec!r} is not a compression.", hint=f"Known are: {known}.")
        codec, allowed = BlobCodec(self.codec), _LEVELS[self.codec]
        level = _DEFAULT_LEVEL[codec] if self.level is None else self.level
        if level not in allowed:
            raise ConfigError(
                f"{codec.value} has no level {self.level!r}.", hint=f"Levels: {allowed[0]} to {allowed[-1]}."
            )
        object.__setattr__(self, "codec", codec)
        object.__setattr__(self, "level", level)


class Compressor:
    """Compresses blobs. Not for several threads at once: give each its own."""

    __slots__ = ("_level", "_worth", "_zstd", "codec")

    def __init__(self, compression: Compression | None = None, *, worth: float = WORTH) -> None:
        chosen = compression or Compression()
        self._worth = worth
        self.codec = chosen.codec
        self._level = chosen.level or 0
        self._zstd = zstandard.ZstdCompressor(level=self._level) if self.codec is BlobCodec.ZSTD else None

    def compress(self, data: Buffer) -> tuple[BlobCodec, Buffer]:
        """Return the codec that was used and the bytes to store; raw where compression gains too little."""
        view = memoryview(data).cast("B")
        if self.codec is BlobCodec.RAW or not view.nbytes:
            return BlobCodec.RAW, data
        if view.nbytes > PROBE_BYTES and not self._pays(self._encode(view[:PROBE_BYTES]), PROBE_BYTES):
            return BlobCodec.RAW, data
        stored = self._encode(view)
        return (self.codec, stored) if self._pays(stored, view.nbytes) else (BlobCodec.RAW, data)

    def _pays(self, stored: bytes, size: int) -> bool:
        return len(stored) * self._worth < size

    def _encode(self, data: memoryview) -> bytes:
        if self._zstd is not None:
            return self._zstd.compress(data)
        # mtime is left out: equal blobs must give equal stored bytes
        encoder = zlib.compressobj(self._level, zlib.DEFLATED, _GZIP_WINDOW)
        return encoder.compress(data) + encoder.flush()


def decompress(codec: BlobCodec | str, stored: Buffer, target: memoryview) -> None:
    """Fill `target` with exactly what was stored, or raise `CorruptObject`; needs no memory of its own.

    What is stored raw may lie in `target` already. Safe for several threads.
    """
    try:
        known = BlobCodec(codec)
    except ValueError:
        raise UnsupportedFormat(
            f"The compression {str(codec)[:40]!r} is not known.", hint="Upgrade unbroken."
        ) from None
    if known is BlobCodec.RAW:
        _copy(stored, target)
    elif known is BlobCodec.ZSTD:
        _unzstd(stored, target)
    else:
        _gunzip(stored, target)


def _copy(stored: Buffer, target: memoryview) -> None:
    if len(stored) != target.nbytes:
        raise _wrong_size(len(stored), target)
    if stored is not target:
        target[:] = stored


def _unzstd(stored: Buffer, target: memoryview) -> None:
    try:
        announced = zstandard.frame_content_size(stored)
        if announced not in (-1, target.nbytes):
            raise _wrong_size(announced, target)
        # Its own stubs do not say what it reads into.
        reader = cast("BufferedIOBase", _decompressors.zstd.stream_reader(stored, read_across_frames=True))
        filled = 0
        while filled < target.nbytes and (count := reader.readinto(target[filled:])):
            filled += count
        if filled < target.nbytes or reader.read(1):
            raise CorruptObject(f"A blob does not hold the {target.nbytes} bytes that were recorded.")
    except zstandard.ZstdError as error:
        raise CorruptObject(f"A compressed blob is not readable: {error}.") from error


def _gunzip(stored: Buffer, target: memoryview) -> None:
    decoder = zlib.decompressobj(_GZIP_WINDOW)
    filled = 0
    waiting = stored
    try:
        while not decoder.eof:
            # One byte more than there is room for: more than that is never held.
            piece = decoder.decompress(waiting, min(_GZIP_PIECE, target.nbytes - filled + 1))
            waiting = decoder.unconsumed_tail
            if not piece and not waiting:
                break  # cut off
            if filled + len(piece) > target.nbytes:
                raise _wrong_size(filled + len(piece), target)
            target[filled : filled + len(piece)] = piece
            filled += len(piece)
    except zlib.error as error:
        raise CorruptObject(f"A compressed blob is not readable: {error}.") from error
    if filled != target.nbytes:
        raise _wrong_size(filled, target)
    if not decoder.eof or decoder.unused_data:
        raise CorruptObject("A compressed blob does not end where its bytes end.")


def _wrong_size(size: int, target: memoryview) -> CorruptObject:
    return CorruptObject(f"A blob holds {size} bytes where {target.nbytes} were recorded.")
