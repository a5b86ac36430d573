"""Compression of blobs: a codec a blob, chosen by trying.

Weights hardly compress (1.08), frames do (25 and more): so the first 64 KiB decide. Decompression
never gives more bytes than were announced, whatever the input.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum

import zstandard

from unbroken.errors import ConfigError, CorruptObject, UnsupportedFormat
from unbroken.format.buffers import Buffer

PROBE_BYTES = 64 * 1024
WORTH = 1.15
"""Smallest ratio for which bytes are stored compressed."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


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

    >>> Compression(BlobCodec.GZIP).level
    6
    """

    codec: BlobCodec = BlobCodec.ZSTD
    level: int | None = None

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

    __slots__ = ("_level", "_zstd", "codec")

    def __init__(self, compression: Compression | None = None) -> None:
        chosen = compression or Compression()
        self.codec = chosen.codec
        self._level = chosen.level or 0
        self._zstd = zstandard.ZstdCompressor(level=self._level) if self.codec is BlobCodec.ZSTD else None

    def compress(self, data: Buffer) -> tuple[BlobCodec, Buffer]:
        """Return the codec that was used and the bytes to store; raw where compression gains too little."""
        view = memoryview(data).cast("B")
        if self.codec is BlobCodec.RAW or not view.nbytes:
            return BlobCodec.RAW, data
        if view.nbytes > PROBE_BYTES and not _worth(self._encode(view[:PROBE_BYTES]), PROBE_BYTES):
            return BlobCodec.RAW, data
        stored = self._encode(view)
        return (self.codec, stored) if _worth(stored, view.nbytes) else (BlobCodec.RAW, data)

    def _encode(self, data: memoryview) -> bytes:
        if self._zstd is not None:
            return self._zstd.compress(data)
        # mtime is left out: equal blobs must give equal stored bytes
        encoder = zlib.compressobj(self._level, zlib.DEFLATED, _GZIP_WINDOW)
        return encoder.compress(data) + encoder.flush()


def decompress(codec: BlobCodec | str, stored: Buffer, size: int) -> bytes:
    """Return exactly `size` bytes, or raise `CorruptObject`; never allocates more than that.

    The caller has checked that `size` is a size it is willing to hold.
    """
    try:
        known = BlobCodec(codec)
    except ValueError:
        raise UnsupportedFormat(
            f"The compression {str(codec)[:40]!r} is not known.", hint="Upgrade unbroken."
        ) from None
    if known is BlobCodec.RAW:
        data = bytes(stored)
    elif known is BlobCodec.ZSTD:
        data = _unzstd(stored, size)
    else:
        data = _gunzip(stored, size)
    if len(data) != size:
        raise CorruptObject(f"A blob holds {len(data)} bytes where {size} were recorded.")
    return data


def _worth(stored: bytes, size: int) -> bool:
    return len(stored) * WORTH < size


def _unzstd(stored: Buffer, size: int) -> bytes:
    try:
        # A frame that announces its size is decompressed into a buffer of that size.
        announced = zstandard.frame_content_size(stored)
        if announced not in (-1, size):
            raise CorruptObject(f"A blob announces {announced} bytes where {size} were recorded.")
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptObject(f"A compressed blob is not readable: {error}.") from error


def _gunzip(stored: Buffer, size: int) -> bytes:
    decoder = zlib.decompressobj(_GZIP_WINDOW)
    try:
        data = decoder.decompress(stored, size + 1)
    except zlib.error as error:
        raise CorruptObject(f"A compressed blob is not readable: {error}.") from error
    if len(data) == size and (not decoder.eof or decoder.unused_data):
        raise CorruptObject("A compressed blob does not end where its bytes end.")
    return data
