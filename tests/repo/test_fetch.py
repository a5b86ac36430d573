"""Blobs are fetched into their places, every one checked, with few reads and bounded memory."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Sequence

import pytest

from unbroken.errors import StoreUnavailable
from unbroken.format import layout
from unbroken.format.compression import BlobCodec, Compression, Compressor
from unbroken.format.digest import digest_of
from unbroken.format.pack import ENTRY_BYTES, PackIndex, PackWriter
from unbroken.repo import fetch
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.fault import ObjectFault
from unbroken.repo.fetch import Destination, fetch_blobs
from unbroken.store.memory import MemoryStore
from unbroken.types import Digest

from .states import noise

TEXT = b"what compresses well " * 200


class Watched(MemoryStore):
    """Notes every read of blobs, and into which memory."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Sequence[memoryview]] = []
        self.missing_bytes = 0
        self.down = False

    def read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        self.reads.append(parts)
        if self.down:
            raise StoreUnavailable("The store did not answer.", key=key)
        at = 0
        for part in parts:
            piece = self.get_range(key, offset + at, part.nbytes)
            part[: len(piece)] = piece
            at += len(piece)
        return at - self.missing_bytes


def add_pack(index: BlobIndex, name: str, blobs: Sequence[bytes], codec: BlobCodec = BlobCodec.ZSTD) -> None:
    writer, compressor = PackWriter(name), Compressor(Compression(codec))
    entries = ((digest_of(blob), len(blob), *compressor.compress(blob)) for blob in blobs)
    index.store.put(layout.pack(name), b"".join(writer.stream(entries)))
    index.add(writer.index())


def damage(index: BlobIndex, name: str, blob: bytes) -> None:
    """Flip one bit of the stored bytes of a blob."""
    (entry,) = [entry for entry in index.packs[name].entries if entry.digest == digest_of(blob)]
    data = bytearray(index.store.get(layout.pack(name)))
    data[entry.offset + ENTRY_BYTES + entry.stored // 2] ^= 4
    index.store.put(layout.pack(name), bytes(data))


def fetched(index: BlobIndex, blobs: Sequence[bytes], *, copies: int = 1) -> dict[Digest, list[bytes]]:
    """Fetch blobs, all of which must be whole; return what lies in their places then."""
    places = {digest_of(blob): [bytearray(len(blob)) for _ in range(copies)] for blob in blobs}
    wanted = {
        digest: Destination(len(parts[0]), tuple(map(memoryview, parts))) for digest, parts in places.items()
    }
    found = list(fetch_blobs(index, wanted))
    assert [one.fault for one in found] == [None] * len(wanted)
    assert {one.digest for one in found} == set(wanted)
    return {digest: [bytes(part) for part in parts] for digest, parts in places.items()}


def faults(index: BlobIndex, wanted: dict[Digest, Destination]) -> list[ObjectFault]:
    return [one.fault for one in fetch_blobs(index, wanted) if one.fault is not None]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("unbroken-fetch")]


@pytest.mark.parametrize("alone", [0, 1 << 30])
@pytest.mark.parametrize("seed", range(8))
def test_everything_lies_where_it_is_wanted(alone: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ALONE", alone)
    monkeypatch.setattr(fetch, "READ_BYTES", 20_000)
    monkeypatch.setattr(fetch, "BLOB_BYTES", 50_000)
    monkeypatch.setattr(fetch, "GAP", 500)
    chance = random.Random(seed)
    index, blobs = BlobIndex(Watched()), list[bytes]()
    for number in range(3):
        new = [
            noise(chance.randrange(3000), chance.randrange(10**9)) * chance.randint(1, 3) for _ in range(40)
        ]
        add_pack(index, f"p{number}", new, chance.choice(list(BlobCodec)))
        blobs += new
    wanted = chance.sample(blobs, 60)
    assert fetched(index, wanted, copies=2) == {digest_of(blob): [blob, blob] for blob in wanted}
    assert not threads()


def test_raw_blobs_are_read_into_their_places_and_neighbours_at_once() -> None:
    store = Watched()
    index, blobs = BlobIndex(store), [noise(5000, 1), TEXT, noise(6000, 2)]
    add_pack(index, "p1", blobs)
    place = bytearray(6000)
    wanted = {digest_of(blob): Destination(len(blob)) for blob in blobs}
    wanted[digest_of(blobs[2])] = Destination(6000, (memoryview(place),))
    assert faults(index, wanted) == []
    (parts,) = store.reads
    assert any(part.obj is place for part in parts)
    assert place == blobs[2]


def test_what_lies_far_apart_is_read_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "GAP", 5000 + ENTRY_BYTES)
    for between, reads in ((5000, 1), (5001, 2)):
        store = Watched()
        index, ends = BlobIndex(store), [noise(5000, 1), noise(5000, 2)]
        add_pack(index, "p1", [ends[0], noise(between, 3), ends[1]])
        fetched(index, ends)
        assert len(store.reads) == reads


@pytest.mark.parametrize("blob", [noise(5000, 1), TEXT], ids=["raw", "compressed"])
def test_a_blob_that_is_damaged_in_one_place_comes_from_another(blob: bytes) -> None:
    index = BlobIndex(MemoryStore())
    for name in ("p1", "p2"):
        add_pack(index, name, [noise(100, 7), blob])
    damage(index, "p1", blob)
    assert fetched(index, [blob])[digest_of(blob)] == [blob]
    assert index.suspect == {digest_of(blob)}


@pytest.mark.parametrize("blob", [noise(5000, 1), TEXT], ids=["raw", "compressed"])
@pytest.mark.parametrize("with_place", [True, False])
def test_a_damaged_blob_is_named_and_its_neighbours_are_whole(blob: bytes, with_place: bool) -> None:
    index = BlobIndex(MemoryStore())
    add_pack(index, "p1", [noise(100, 7), blob, noise(100, 8)])
    damage(index, "p1", blob)
    places = (memoryview(bytearray(len(blob))),) if with_place else ()
    wanted = {digest_of(noise(100, n)): Destination(100) for n in (7, 8)}
    (fault,) = faults(index, {**wanted, digest_of(blob): Destination(len(blob), places)})
    assert (fault.key, fault.digest) == (layout.pack("p1"), digest_of(blob))
    assert fault.problem.endswith("is damaged.")


@pytest.mark.parametrize("missing", [1, 5000, 5001, 5000 + ENTRY_BYTES])
def test_a_read_that_ends_early_is_a_damaged_blob(missing: int) -> None:
    store = Watched()
    index = BlobIndex(store)
    add_pack(index, "p1", [noise(100, 7), noise(5000, 1)])
    store.missing_bytes = missing
    place = memoryview(bytearray(5000))
    wanted = {
        digest_of(noise(100, 7)): Destination(100),
        digest_of(noise(5000, 1)): Destination(5000, (place,)),
    }
    (fault,) = faults(index, wanted)
    assert (fault.key, fault.digest) == (layout.pack("p1"), digest_of(noise(5000, 1)))


def test_a_blob_of_another_size_than_recorded_is_a_fault() -> None:
    index = BlobIndex(MemoryStore())
    add_pack(index, "p1", [TEXT])
    place = bytearray(10)
    (fault,) = faults(index, {digest_of(TEXT): Destination(10, (memoryview(place),))})
    assert f"has {len(TEXT)} bytes where 10 were recorded" in fault.problem
    assert place == bytearray(10)


def test_a_store_that_does_not_answer_is_no_fault_of_a_blob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ALONE", 0)
    store = Watched()
    index = BlobIndex(store)
    add_pack(index, "p1", [TEXT])
    store.down = True
    with pytest.raises(StoreUnavailable):
        fetched(index, [TEXT])
    assert not index.suspect
    assert not threads()


def test_little_is_read_ahead_and_no_thread_outlives_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ALONE", 0)
    monkeypatch.setattr(fetch, "READ_BYTES", 1)
    store = Watched()
    index, blobs = BlobIndex(store), [noise(2000, n) for n in range(50)]
    add_pack(index, "p1", blobs)
    reading = fetch_blobs(index, {digest_of(blob): Destination(2000) for blob in blobs})
    next(reading)
    assert len(store.reads) <= fetch.AHEAD
    del reading
    assert len(store.reads) <= fetch.AHEAD
    assert not threads()


def test_checking_takes_the_memory_of_a_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ALONE", 0)
    monkeypatch.setattr(fetch, "READ_BYTES", 1 << 20)
    index = BlobIndex(Watched())
    blobs = [noise(1 << 19, n) for n in range(40)] + [bytes([n]) * (1 << 20) for n in range(40)]
    add_pack(index, "p1", blobs)
    wanted = {digest_of(blob): Destination(len(blob)) for blob in blobs}
    tracemalloc.start()
    try:
        assert faults(index, wanted) == []
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_blob_that_no_index_knows_is_a_fault() -> None:
    index = BlobIndex(MemoryStore())
    index.add(PackIndex(pack="p1", entries=[]))
    (fault,) = faults(index, {digest_of(b"x"): Destination(1)})
    assert "No pack holds blob" in fault.problem
