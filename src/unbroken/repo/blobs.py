"""Where the blobs of a run lie, and how they get out of the packs and into them.

A blob is one chunk of an array. Manifests name blobs by digest; the indexes beside the packs say
where each lies, possibly in several places. Every blob that is read is checked: its entry, its stored
bytes, its size and its digest.

Invariant: a pack is durable before its index is, and an index before anything that names its blobs.
Not promised: that bytes of a pack which belong to other checkpoints are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format import layout, pack
from unbroken.format.pack import PackEntry, PackIndex
from unbroken.repo.fault import ObjectFault
from unbroken.store.base import ByteStore
from unbroken.types import Digest

READ_BYTES = 8 << 20
"""Neighbouring blobs are read together, up to this many bytes."""


@dataclass(frozen=True, slots=True)
class Location:
    """One place where a blob lies."""

    pack: str
    entry: PackEntry


@dataclass(frozen=True, slots=True)
class BlobRead:
    """The outcome of reading one blob: its bytes, or what is wrong with it."""

    digest: Digest
    outcome: bytes | ObjectFault


@dataclass(slots=True)
class BlobIndex:
    """All readable indexes of a run, kept in memory. An index never changes, so each is read once."""

    store: ByteStore
    packs: dict[str, PackIndex] = field(default_factory=dict[str, PackIndex])
    damaged: dict[str, ObjectFault] = field(default_factory=dict[str, ObjectFault])
    """Indexes that cannot be read, and packs that are missing or cut off, by the pack's name."""
    suspect: set[str] = field(default_factory=set[str])
    """Blobs that were found damaged in some place; the next save writes them anew."""
    condemned: set[str] = field(default_factory=set[str])
    """Packs that this process has begun to delete: a store may carry out a deletion later than it says."""
    _places: dict[str, list[Location]] = field(default_factory=dict[str, "list[Location]"])

    def refresh(self) -> None:
        """Read indexes that are new, and forget those that are gone."""
        listed = frozenset(self.store.list(layout.PACKS))
        present = {
            name
            for key in listed
            if (name := layout.pack_name(key)) is not None and key == layout.index(name)
        }
        for name in [*self.packs, *self.damaged]:
            if name not in present:
                # Not deleted by us: nothing may build any more on what it held.
                lost = self.packs.get(name)
                self.suspect.update(entry.digest for entry in (lost.entries if lost else ()))
                self.forget(name)
        self.condemned &= present
        for name in sorted(present - self.packs.keys()):
            try:
                self.add(_read_index(self.store, name))
            except ObjectMissing as error:
                # Both were collected since the listing, or the pack alone is missing.
                if layout.pack(name) not in listed:
                    self.damaged[name] = ObjectFault("", layout.pack(name), "", error.message)
            except (CorruptObject, UnsupportedFormat) as error:
                # Indexes carry the version of the run, which was checked: another one is damage.
                key = error.key if isinstance(error, CorruptObject) else layout.index(name)
                self.damaged[name] = ObjectFault("", key, "", error.message)

    def add(self, index: PackIndex) -> None:
        """Take in the index of a pack that is durable."""
        self.damaged.pop(index.pack, None)
        self.packs[index.pack] = index
        for entry in index.entries:
            self._places.setdefault(entry.digest, []).append(Location(index.pack, entry))

    def condemn(self, names: Iterable[str]) -> None:
        """Leave out packs that are about to be deleted, and build on them no more whatever comes of it."""
        for name in names:
            self.forget(name)
            self.condemned.add(name)

    def forget(self, name: str) -> None:
        """Leave out a pack that is gone."""
        self.damaged.pop(name, None)
        index = self.packs.pop(name, None)
        for entry in index.entries if index is not None else ():
            rest = [place for place in self._places[entry.digest] if place.pack != name]
            if rest:
                self._places[entry.digest] = rest
            else:
                del self._places[entry.digest]

    def places(self, digest: str) -> list[Location]:
        """Return every place where a blob lies."""
        return self._places.get(digest, [])


def read_blobs(index: BlobIndex, wanted: Mapping[Digest, int]) -> Iterator[BlobRead]:
    """Read blobs given by digest and size; yield each once, in the order in which they lie.

    A blob that is damaged in one place is read from another, if there is one.
    """
    problems: dict[str, ObjectFault | None] = {}
    remaining = {digest: list(index.places(digest)) for digest in wanted}
    faults: dict[Digest, ObjectFault] = {}
    while remaining:
        this_time: list[tuple[Digest, Location]] = []
        for digest, places in list(remaining.items()):
            if places:
                this_time.append((digest, places.pop(0)))
            else:
                del remaining[digest]
                yield BlobRead(digest, faults.get(digest) or _nowhere(index, digest))
        for digest, outcome in _read_places(index, this_time, wanted, problems):
            if isinstance(outcome, ObjectFault):
                index.suspect.add(digest)
                faults.setdefault(digest, outcome)
            else:
                del remaining[digest]
                yield BlobRead(digest, outcome)


def pack_fault(store: ByteStore, index: PackIndex) -> ObjectFault | None:
    """Return what is wrong with a pack outside of its blobs, or None."""
    key = layout.pack(index.pack)
    try:
        size = store.size(key)
        header = store.get_range(key, 0, pack.HEADER_BYTES)
        if header != next(pack.PackWriter(index.pack).stream(())):
            raise CorruptObject(f"{key} has a damaged header.", key=key)
        own = pack.read_index(lambda offset, length: store.get_range(key, offset, length), size, key=key)
        if own != index:
            raise CorruptObject(f"{key} and its index differ.", key=key)
    except (CorruptObject, UnsupportedFormat, ObjectMissing) as error:
        return ObjectFault("", key, "", error.message)
    return None


def _read_index(store: ByteStore, name: str) -> PackIndex:
    key = layout.index(name)
    index = pack.decode_index(store.get(key), key=key)
    if index.pack != name:
        raise CorruptObject(f"{key} describes the pack {index.pack[:80]!r}.", key=key)
    # One cheap look, so that no save ever builds on a pack that was cut off.
    key, expected = layout.pack(name), _pack_size(index)
    if (size := store.size(key)) != expected:
        raise CorruptObject(f"{key} has {size} bytes where {expected} were written.", key=key)
    return index


def _pack_size(index: PackIndex) -> int:
    blobs = sum(entry.length for entry in index.entries)
    return pack.HEADER_BYTES + blobs + len(pack.encode_index(index)) + pack.TAIL_BYTES


def _nowhere(index: BlobIndex, digest: Digest) -> ObjectFault:
    # A blob that no readable index knows most likely lies in a pack whose index is damaged.
    for fault in index.damaged.values():
        return ObjectFault(
            "", fault.key, digest, f"{fault.problem} Blob {digest[:19]} cannot be found without it."
        )
    return ObjectFault("", layout.PACKS, digest, f"No pack holds blob {digest[:19]}.")


def _read_places(
    index: BlobIndex,
    places: list[tuple[Digest, Location]],
    wanted: Mapping[Digest, int],
    problems: dict[str, ObjectFault | None],
) -> Iterator[tuple[Digest, bytes | ObjectFault]]:
    by_pack: dict[str, list[tuple[Digest, PackEntry]]] = {}
    for digest, place in places:
        by_pack.setdefault(place.pack, []).append((digest, place.entry))
    for name, entries in by_pack.items():
        key = layout.pack(name)
        if name not in problems:
            problems[name] = pack_fault(index.store, index.packs[name])
        if (problem := problems[name]) is not None:
            yield from ((digest, replace(problem, digest=digest)) for digest, _ in entries)
            continue
        entries.sort(key=lambda pair: pair[1].offset)
        for run in _runs(entries):
            first, last = run[0][1], run[-1][1]
            try:
                data = memoryview(
                    index.store.get_range(key, first.offset, last.offset + last.length - first.offset)
                )
            except ObjectMissing as error:
                yield from ((digest, ObjectFault("", key, digest, error.message)) for digest, _ in run)
                continue
            for digest, entry in run:
                at = entry.offset - first.offset
                yield digest, _checked(data[at : at + entry.length], entry, wanted[digest], key)


def _checked(data: memoryview, entry: PackEntry, size: int, key: str) -> bytes | ObjectFault:
    try:
        digest, raw = pack.read_blob(bytes(data), entry=entry, key=key)
    except (CorruptObject, UnsupportedFormat) as error:
        return ObjectFault("", key, entry.digest, error.message)
    if len(raw) != size:
        return ObjectFault(
            "", key, digest, f"Blob {digest[:19]} in {key} has {len(raw)} bytes where {size} were recorded."
        )
    return raw


def _runs(entries: list[tuple[Digest, PackEntry]]) -> Iterator[list[tuple[Digest, PackEntry]]]:
    """Group neighbours, so that many small blobs cost one read."""
    run: list[tuple[Digest, PackEntry]] = []
    for pair in entries:
        entry = pair[1]
        if run:
            first, last = run[0][1], run[-1][1]
            adjacent = last.offset + last.length == entry.offset
            if not adjacent or entry.offset + entry.length - first.offset > READ_BYTES:
                yield run
                run = []
        run.append(pair)
    if run:
        yield run
