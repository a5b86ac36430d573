"""Where the blobs of a run lie.

A blob is one chunk of an array. Manifests name blobs by digest; the indexes beside the packs say
where each lies, possibly in several places.

Invariant: a pack is durable before its index is, and an index before anything that names its blobs.
Not promised: that bytes of a pack which belong to other checkpoints are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format import layout, pack
from unbroken.format.pack import PackEntry, PackIndex
from unbroken.repo.fault import ObjectFault
from unbroken.store.base import ByteStore, SupportsTaken, exists
from unbroken.types import Digest

READ_FROM_PACK = "What its pack holds was read from the pack itself."


@dataclass(frozen=True, slots=True)
class Location:
    """One place where a blob lies."""

    pack: str
    entry: PackEntry


@dataclass(slots=True)
class BlobIndex:
    """All readable indexes of a run, kept in memory. An index never changes, so each is read once."""

    store: ByteStore
    packs: dict[str, PackIndex] = field(default_factory=dict[str, PackIndex])
    damaged: dict[str, ObjectFault] = field(default_factory=dict[str, ObjectFault])
    """Indexes that cannot be read, and packs that are missing or cut off, by the pack's name."""
    rebuilt: dict[str, ObjectFault] = field(default_factory=dict[str, ObjectFault])
    """Indexes that cannot be read, of packs that say themselves what they hold, by the pack's name."""
    suspect: set[str] = field(default_factory=set[str])
    """Blobs that were found damaged in some place; the next save writes them anew."""
    condemned: set[str] = field(default_factory=set[str])
    """Packs that this process has begun to delete: a store may carry out a deletion later than it says."""
    _places: dict[str, list[Location]] = field(default_factory=dict[str, "list[Location]"])

    def refresh(self) -> None:
        """Read indexes that are new, and forget those that are gone."""
        lost, new = self._forget_gone()
        for name, has_pack in new.items():
            self._read(name, has_pack=has_pack)
        # Not deleted by us: nothing may build any more on what these held, unless a compaction has moved it.
        self.suspect.update(digest for digest in lost if not self.places(digest))

    def forget_gone(self) -> None:
        """Forget indexes that are gone. Where others delete, it says nothing of what these held."""
        self._forget_gone()

    def _forget_gone(self) -> tuple[set[Digest], dict[str, bool]]:
        """Forget indexes that are gone; return the blobs that they named, and the names of indexes that are new,
        each with whether its pack was listed, too."""
        listed = frozenset(self.store.list(layout.PACKS))
        present = {
            name
            for key in listed
            if (name := layout.pack_name(key)) is not None and key == layout.index(name)
        }
        if isinstance(self.store, SupportsTaken):
            # What is no object is not listed, and its pack is no leftover all the same.
            packs = {name for key in listed if (name := layout.pack_name(key)) is not None}
            present |= {name for name in packs - present if exists(self.store, layout.index(name))}
        gone = [
            name
            for name in (*self.packs, *self.damaged)
            if name not in present or self._lacks_pack(name, listed)
        ]
        lost = {entry.digest for name in gone if name in self.packs for entry in self.packs[name].entries}
        for name in gone:
            self.forget(name)
        self.condemned &= present
        return lost, {name: layout.pack(name) in listed for name in sorted(present - self.packs.keys())}

    def _read(self, name: str, *, has_pack: bool) -> None:
        try:
            self.add(_read_index(self.store, name))
        except ObjectMissing as error:
            # Both were collected since the listing, or the pack alone is missing.
            if not has_pack:
                self.damaged[name] = ObjectFault("", layout.pack(name), "", error.message)
        except (CorruptObject, UnsupportedFormat) as error:
            # Indexes carry the version of the run, which was checked: another one is damage.
            key = error.key if isinstance(error, CorruptObject) else layout.index(name)
            fault = ObjectFault("", key, "", error.message)
            own = _own_index(self.store, name) if key == layout.index(name) else None
            if own is None:
                self.damaged[name] = fault
            else:
                self.add(own)
                self.rebuilt[name] = replace(fault, problem=f"{error.message} {READ_FROM_PACK}")

    def _lacks_pack(self, name: str, listed: Collection[str]) -> bool:
        """Whether a pack is gone while its index is still there: somebody tidies up by age, or by size."""
        key = layout.pack(name)
        return key not in listed and not exists(self.store, key)  # a listing may lag behind

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
        self.rebuilt.pop(name, None)
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

    def nowhere(self, digest: Digest) -> ObjectFault:
        """Return why a blob that lies in no place cannot be had."""
        # Most likely it lies in a pack whose index is damaged.
        for fault in self.damaged.values():
            return ObjectFault(
                "", fault.key, digest, f"{fault.problem} Blob {digest[:19]} cannot be found without it."
            )
        return ObjectFault("", layout.PACKS, digest, f"No pack holds blob {digest[:19]}.")


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


def _own_index(store: ByteStore, name: str) -> PackIndex | None:
    """Return the index that stands in the pack itself, if the pack is whole as far as its ends tell."""
    key = layout.pack(name)
    try:
        size = store.size(key)
        own = pack.read_index(lambda offset, length: store.get_range(key, offset, length), size, key=key)
    except (CorruptObject, UnsupportedFormat, ObjectMissing):
        return None
    return own if own.pack == name and _pack_size(own) == size else None


def _pack_size(index: PackIndex) -> int:
    blobs = sum(entry.length for entry in index.entries)
    return pack.HEADER_BYTES + blobs + len(pack.encode_index(index)) + pack.TAIL_BYTES
