"""Compression is chosen by gain, comes back equal, and never gives more than was announced."""

from __future__ import annotations

import gzip
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import ConfigError, CorruptObject, UnsupportedFormat
from unbroken.format.buffers import Buffer
from unbroken.format.compression import PROBE_BYTES, BlobCodec, Compression, Compressor, decompress

NOISE = random.Random(0).randbytes(200_000)
PACKED = [BlobCodec.ZSTD, BlobCodec.GZIP]


def decompressed(codec: BlobCodec | str, stored: Buffer, size: int) -> bytes:
    """Decompress into the middle of a larger memory, nothing of which may be touched beside."""
    room = bytearray(b"\xee" * (size + 200))
    decompress(codec, stored, memoryview(room)[100 : size + 100])
    assert room[:100] == room[-100:] == b"\xee" * 100
    return bytes(room[100 : size + 100])


@pytest.mark.parametrize("codec", PACKED)
def test_what_shrinks_is_compressed(codec: BlobCodec) -> None:
    used, stored = Compressor(Compression(codec)).compress(bytes(200_000))
    assert used is codec
    assert len(stored) < 2000
    assert decompressed(used, stored, 200_000) == bytes(200_000)


@pytest.mark.parametrize("codec", BlobCodec)
@pytest.mark.parametrize("data", [b"", b"a", NOISE, NOISE[:PROBE_BYTES] + bytes(300_000)])
def test_what_does_not_shrink_at_once_stays_raw(codec: BlobCodec, data: bytes) -> None:
    assert Compressor(Compression(codec)).compress(data) == (BlobCodec.RAW, data)


@pytest.mark.parametrize("codec", PACKED)
def test_a_promising_beginning_that_gains_nothing_in_all_stays_raw(codec: BlobCodec) -> None:
    data = bytes(PROBE_BYTES) + random.Random(1).randbytes(2_000_000)
    assert Compressor(Compression(codec)).compress(data) == (BlobCodec.RAW, data)


@given(st.binary(max_size=500), st.integers(1, 300), st.sampled_from(BlobCodec))
def test_round_trip(unit: bytes, times: int, codec: BlobCodec) -> None:
    data = unit * times
    used, stored = Compressor(Compression(codec)).compress(memoryview(data))
    assert decompressed(used, stored, len(data)) == data


@pytest.mark.parametrize("codec", PACKED)
def test_equal_blobs_give_equal_bytes(codec: BlobCodec) -> None:
    first, second = Compressor(Compression(codec)), Compressor(Compression(codec))
    assert first.compress(bytes(99_999)) == first.compress(bytes(99_999)) == second.compress(bytes(99_999))


@pytest.mark.parametrize(
    ("codec", "level"),
    [(BlobCodec.ZSTD, 1), (BlobCodec.ZSTD, 22), (BlobCodec.GZIP, 1), (BlobCodec.GZIP, 9), (BlobCodec.RAW, 0)],
)
def test_levels(codec: BlobCodec, level: int) -> None:
    used, stored = Compressor(Compression(codec, level)).compress(bytes(5000))
    assert decompressed(used, stored, 5000) == bytes(5000)


@pytest.mark.parametrize(
    ("codec", "level"), [("lz4", None), ("zstd", 0), ("zstd", 23), ("gzip", 10), ("raw", 1)]
)
def test_bad_settings_are_named(codec: str, level: int | None) -> None:
    with pytest.raises(ConfigError) as caught:
        Compression(codec, level)  # type: ignore[arg-type]
    assert caught.value.hint


def test_settings_may_be_given_as_text() -> None:
    assert Compression("gzip") == Compression(BlobCodec.GZIP, 6)  # type: ignore[arg-type]


BOMB = bytes(50_000_000)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (BlobCodec.ZSTD, zstandard.ZstdCompressor().compress(BOMB)),
        (BlobCodec.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(BOMB)),
        (BlobCodec.ZSTD, zstandard.ZstdCompressor().compress(bytes(1000)) * 2),
        (BlobCodec.GZIP, gzip.compress(BOMB, mtime=0)),
        (BlobCodec.GZIP, gzip.compress(bytes(1000), mtime=0) * 2),
        (BlobCodec.RAW, BOMB),
    ],
)
def test_bombs_are_refused(codec: BlobCodec, bomb: bytes) -> None:
    with pytest.raises(CorruptObject):
        decompressed(codec, bomb, 1000)


def test_what_is_raw_may_lie_where_it_belongs() -> None:
    room = memoryview(bytearray(b"abc"))
    decompress(BlobCodec.RAW, room, room)
    assert bytes(room) == b"abc"


def test_threads_do_not_disturb_each_other() -> None:
    blobs = [random.Random(i).randbytes(50) * 8000 for i in range(40)]
    stored = [Compressor(Compression(BlobCodec.ZSTD)).compress(blob) for blob in blobs]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda one: decompressed(one[0], one[1], 400_000), stored)
        assert list(found) == blobs


@pytest.mark.parametrize("codec", BlobCodec)
def test_too_little_is_refused(codec: BlobCodec) -> None:
    used, stored = Compressor(Compression(codec)).compress(bytes(1000))
    with pytest.raises(CorruptObject):
        decompressed(used, stored, 1001)


def test_an_unknown_codec_needs_a_newer_version() -> None:
    with pytest.raises(UnsupportedFormat):
        decompressed("lz4", b"", 0)


@given(st.binary(max_size=200), st.integers(0, 2000), st.sampled_from(BlobCodec))
def test_any_bytes_give_the_size_or_our_error(stored: bytes, size: int, codec: BlobCodec) -> None:
    try:
        assert len(decompressed(codec, stored, size)) == size
    except CorruptObject:
        pass


@given(st.sampled_from(PACKED), st.data())
def test_damaged_streams_give_the_size_or_our_error(codec: BlobCodec, data: st.DataObject) -> None:
    _, stored = Compressor(Compression(codec)).compress(b"0123456789" * 500)
    damaged = bytearray(stored)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert (
            len(decompressed(codec, bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), 5000)) == 5000
        )
    except CorruptObject:
        pass
