"""Blobs as they lie in packs: read, checked, and handed on without being compressed again.

Every blob is decompressed and compared with its digest on the way, so that a copy never carries damage on.
One that is damaged in one place is taken from another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unbroken.errors import CorruptObject, ObjectBlocked, ObjectMissing, UnsupportedFormat
from unbroken.format import layout, pack
from unbroken.format.pack import ENTRY_BYTES, PackEntry
from unbroken.repo.blobs import BlobIndex, Location
from unbroken.repo.fault import ObjectFault
from unbroken.repo.pipeline import StoredBlob
from unbroken.types import Digest

READ_BYTES = 8 << 20
"""Neighbours are read together, up to this many bytes."""


def read_stored(index: BlobIndex, wanted: Iterable[Digest]) -> Iterator[StoredBlob | ObjectFault]:
    """Read blobs; yield each once, or what is wrong with it, pack after pack in the order in which they lie."""
    first: dict[str, list[PackEntry]] = {}
    for digest in wanted:
        places = index.places(digest)
        if places:
            first.setdefault(places[0].pack, []).append(places[0].entry)
        else:
            yield ObjectFault("", layout.PACKS, digest, f"No pack holds blob {digest[:19]}.")
    for name, entries in first.items():
        entries.sort(key=lambda entry: entry.offset)
        for run in _runs(entries):
            for entry, found in zip(run, _read(index, name, run), strict=True):
                yield _elsewhere(index, name, entry, found) if isinstance(found, ObjectFault) else found


def _read(index: BlobIndex, name: str, run: list[PackEntry]) -> list[StoredBlob | ObjectFault]:
    """Read neighbours in one pack."""
    key = layout.pack(name)
    start, last = run[0].offset, run[-1]
    try:
        data = memoryview(index.store.get_range(key, start, last.offset + last.length - start))
    except (ObjectMissing, ObjectBlocked) as error:
        return [ObjectFault("", key, entry.digest, error.message) for entry in run]
    return [_checked(data[e.offset - start : e.offset - start + e.length], e, key) for e in run]


def _checked(data: memoryview, entry: PackEntry, key: str) -> StoredBlob | ObjectFault:
    try:
        pack.check_entry(data[:ENTRY_BYTES], entry, key=key)
        digest, raw = pack.read_blob(bytes(data), key=key)
    except (CorruptObject, UnsupportedFormat) as error:
        return ObjectFault("", key, entry.digest, error.message)
    return StoredBlob(digest, len(raw), entry.codec, data[ENTRY_BYTES:])


def _elsewhere(index: BlobIndex, name: str, entry: PackEntry, fault: ObjectFault) -> StoredBlob | ObjectFault:
    others: list[Location] = [place for place in index.places(entry.digest) if place.pack != name]
    for place in others:
        (found,) = _read(index, place.pack, [place.entry])
        if isinstance(found, StoredBlob):
            return found
    return fault


def _runs(entries: list[PackEntry]) -> Iterator[list[PackEntry]]:
    """Cut entries in ascending order into groups of neighbours, each of which is read at once."""
    run: list[PackEntry] = []
    for entry in entries:
        if run:
            adjacent = run[-1].offset + run[-1].length == entry.offset
            if not adjacent or entry.offset + entry.length - run[0].offset > READ_BYTES:
                yield run
                run = []
        run.append(entry)
    if run:
        yield run
