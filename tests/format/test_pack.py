"""Packs: what was written is read back by index, by tail and by scan; damage is found and named."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import CorruptObject, InternalError, UnsupportedFormat
from unbroken.format import pack as packs
from unbroken.format.buffers import Buffer
from unbroken.format.compression import BlobCodec, Compression, Compressor
from unbroken.format.digest import Algorithm, digest_of
from unbroken.format.pack import ENTRY_BYTES, HEADER_BYTES, TAIL_BYTES, PackEntry, PackIndex, PackWriter
from unbroken.types import Digest

BLOBS = [b"", b"a", b"abc" * 1000, bytes(100_000), bytes(range(256)) * 3]


def stored(
    blobs: list[bytes], algorithm: Algorithm = Algorithm.BLAKE3
) -> Iterator[tuple[Digest, int, BlobCodec, Buffer]]:
    compressor = Compressor(Compression(BlobCodec.ZSTD))
    for blob in blobs:
        codec, data = compressor.compress(blob)
        yield digest_of(blob, algorithm=algorithm), len(blob), codec, data


def written(blobs: list[bytes], algorithm: Algorithm = Algorithm.BLAKE3) -> tuple[bytes, PackIndex]:
    writer = PackWriter("p1")
    data = b"".join(writer.stream(stored(blobs, algorithm)))
    assert writer.size == len(data)
    return data, writer.index()


def reader(data: bytes) -> packs.Read:
    return lambda offset, length: data[offset : offset + length]


def blob_at(data: bytes, entry: PackEntry) -> tuple[Digest, bytes]:
    head = data[entry.offset : entry.offset + ENTRY_BYTES]
    packs.check_entry(head, entry, key="p1.pack")
    stored = memoryview(data)[entry.offset + ENTRY_BYTES : entry.offset + entry.length]
    target = bytearray(entry.raw)
    packs.unpack(stored, entry, memoryview(target), key="p1.pack")
    assert packs.read_blob(data[entry.offset :]) == (entry.digest, bytes(target))
    return entry.digest, bytes(target)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_three_ways_lead_to_every_blob(algorithm: Algorithm) -> None:
    data, index = written(BLOBS, algorithm)
    assert packs.read_index(reader(data), len(data)) == index
    assert list(packs.scan(reader(data))) == index.entries
    assert packs.decode_index(packs.encode_index(index)) == index
    assert [blob_at(data, entry) for entry in index.entries] == [
        (digest_of(blob, algorithm=algorithm), blob) for blob in BLOBS
    ]
    assert {entry.codec for entry in index.entries} == {BlobCodec.RAW, BlobCodec.ZSTD}


def test_an_empty_pack_is_a_pack() -> None:
    data, index = written([])
    assert packs.read_index(reader(data), len(data)) == index == PackIndex(pack="p1", entries=[])
    assert list(packs.scan(reader(data))) == []


def test_equal_input_gives_equal_bytes() -> None:
    assert written(BLOBS) == written(BLOBS)


def test_one_blob_at_a_time_is_asked_for() -> None:
    asked: list[int] = []

    def blobs() -> Iterator[tuple[Digest, int, BlobCodec, Buffer]]:
        for number in range(3):
            asked.append(number)
            yield digest_of(b"x"), 1, BlobCodec.RAW, b"x"

    stream = PackWriter("p").stream(blobs())
    next(stream)
    assert asked == []
    next(stream)
    assert asked == [0]


def test_a_writer_is_for_one_pack() -> None:
    writer = PackWriter("p")
    stream = writer.stream([])
    next(stream)
    with pytest.raises(InternalError, match="not finished"):
        writer.index()
    list(stream)
    writer.index()
    with pytest.raises(InternalError, match="one pack"):
        list(writer.stream([]))


def test_the_layout_is_the_one_in_the_specification() -> None:
    """Byte for byte the example of docs/format.md."""
    data, _ = written([b"abc"])
    digest = bytes.fromhex("6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85")
    entry = b"BLOB" + bytes([1, 0, 0, 0]) + (3).to_bytes(8, "little") * 2 + digest
    entry += bytes(4)  # raw: the digest says it
    entry += zlib.crc32(entry).to_bytes(4, "little")
    assert data[:HEADER_BYTES] == b"UNBRPACK" + bytes(8)
    assert data[HEADER_BYTES : HEADER_BYTES + ENTRY_BYTES] == entry
    assert data[HEADER_BYTES + ENTRY_BYTES :][:3] == b"abc"
    assert data[HEADER_BYTES + ENTRY_BYTES + 3 :][:12] == b"UNBRINDX" + bytes(4)
    assert data[-8:] == b"UNBREND\n"
    assert (HEADER_BYTES, ENTRY_BYTES, TAIL_BYTES) == (16, 64, 28)


def test_every_flipped_bit_is_found() -> None:
    data, index = written([b"abc" * 50, bytes(500)])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        raw = bytes(damaged)
        found = 0
        for look in (
            lambda raw=raw: packs.read_index(reader(raw), len(raw)),
            lambda raw=raw: [blob_at(raw, entry) for entry in index.entries],
        ):
            try:
                look()
            except (CorruptObject, UnsupportedFormat):
                found += 1
        assert found, at


def test_a_pack_that_was_cut_off_gives_what_is_whole() -> None:
    data, index = written([b"abc" * 50, b"def" * 70])
    first, second = index.entries
    for end in range(len(data)):
        raw = data[:end]
        with pytest.raises(CorruptObject):
            packs.read_index(reader(raw), len(raw))
        if end < HEADER_BYTES:
            with pytest.raises(CorruptObject):
                list(packs.scan(reader(raw)))
            continue
        whole = [entry for entry in (first, second) if entry.offset + entry.length <= end]
        assert list(packs.scan(reader(raw))) == whole


def test_an_entry_that_is_not_the_one_in_the_index_is_found() -> None:
    data, index = written([b"abc", b"abd"])
    first, second = index.entries
    swapped = data[first.offset : first.offset + first.length]
    with pytest.raises(CorruptObject, match="differs from its index"):
        packs.check_entry(swapped[:ENTRY_BYTES], second, key="k")
    assert packs.read_blob(swapped) == (digest_of(b"abc"), b"abc")


def test_a_blob_whose_digest_lies_is_found() -> None:
    writer = PackWriter("p")
    data = b"".join(writer.stream([(digest_of(b"abd"), 3, BlobCodec.RAW, b"abc")]))
    with pytest.raises(CorruptObject) as caught:
        blob_at(data, writer.index().entries[0])
    assert caught.value.digest == digest_of(b"abd")


@pytest.mark.parametrize(
    ("codec", "raw", "length"),
    [(BlobCodec.ZSTD, packs.MAX_BLOB + 1, 3), (BlobCodec.ZSTD, 2**63 - 1, 3), (BlobCodec.RAW, 4, 3)],
)
def test_impossible_sizes_are_refused_before_they_are_allocated(
    codec: BlobCodec, raw: int, length: int
) -> None:
    writer = PackWriter("p")
    data = b"".join(writer.stream([(digest_of(b""), raw, codec, b"x" * length)]))
    with pytest.raises(CorruptObject, match="impossible size"):
        list(packs.scan(reader(data)))
    with pytest.raises(CorruptObject, match="impossible size"):
        packs.read_index(reader(data), len(data))


def test_a_newer_pack_is_told_from_damage() -> None:
    data, index = written([b"abc"])
    newer = data[:8] + b"\xe7\x03" + data[10:]
    with pytest.raises(UnsupportedFormat):
        packs.read_index(reader(newer), len(newer))
    flagged = data[:10] + b"\x01\x00" + data[12:]
    with pytest.raises(UnsupportedFormat):
        list(packs.scan(reader(flagged)))
    encoded = packs.encode_index(index)
    with pytest.raises(UnsupportedFormat):
        packs.decode_index(encoded[:8] + b"\xe7\x03" + encoded[10:])


def with_crc(head: bytes) -> bytes:
    return head + zlib.crc32(head).to_bytes(4, "little")


@pytest.mark.parametrize("at", [4, 5])
def test_an_unknown_digest_or_codec_needs_a_newer_version(at: int) -> None:
    data, index = written([b"abc"])
    entry = index.entries[0]
    head = bytearray(data[entry.offset : entry.offset + ENTRY_BYTES - 4])
    head[at] = 99
    with pytest.raises(UnsupportedFormat):
        packs.read_blob(with_crc(bytes(head)) + b"abc")


@given(st.binary(max_size=300))
def test_any_bytes_give_our_error(raw: bytes) -> None:
    with pytest.raises(CorruptObject):
        packs.decode_index(raw)
    with pytest.raises(CorruptObject):
        packs.read_index(reader(raw), len(raw))
    with pytest.raises(CorruptObject):
        packs.read_blob(raw)
    with pytest.raises(CorruptObject):
        list(packs.scan(reader(raw)))


@given(st.binary(max_size=100))
def test_an_index_with_any_body_gives_our_error(body: bytes) -> None:
    head = b"UNBRINDX" + bytes(4) + zlib.crc32(body).to_bytes(4, "little")
    with pytest.raises(CorruptObject):
        packs.decode_index(head + body)


@given(st.data())
def test_mutated_packs_give_blobs_or_our_error(data: st.DataObject) -> None:
    raw = bytearray(written([b"abc" * 50, bytes(500)])[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    whole = bytes(raw)
    known = {digest_of(b"abc" * 50): b"abc" * 50, digest_of(bytes(500)): bytes(500)}
    try:
        for entry in packs.scan(reader(whole)):
            digest, blob = blob_at(whole, entry)
            assert known[digest] == blob
        packs.read_index(reader(whole), len(whole))
    except (CorruptObject, UnsupportedFormat):
        pass
