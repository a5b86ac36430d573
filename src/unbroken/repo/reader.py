"""Reads one checkpoint and checks all of it.

One way through for loading and for verifying: each object is fetched and compared with what vouches
for it; loading stops at the first fault, verifying collects them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

from unbroken.errors import ConfigError, CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format import document as documents
from unbroken.format import layout
from unbroken.format import manifest as manifests
from unbroken.format import meta as metas
from unbroken.format.chunks import ChunkList
from unbroken.format.digest import matches
from unbroken.format.document import BlobRef, Document, chunks_of
from unbroken.format.manifest import Manifest
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.repo import birth
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, References
from unbroken.repo.fault import ObjectFault
from unbroken.repo.fetch import THREADS, Destination, fetch_blobs
from unbroken.repo.log import read_commit
from unbroken.repo.opaque import opaque_places
from unbroken.repo.room import check_room
from unbroken.repo.seal import seal
from unbroken.state.crew import Crew
from unbroken.state.memory import fresh
from unbroken.state.snapshot import Base, Bytes, Component, Promise, Snapshot
from unbroken.store.base import ByteStore
from unbroken.types import Digest

TOGETHER = 16
"""Chunks whose digests one thread computes at a time."""


class Reader:
    """Reads one commit. Manifest and metadata are kept once they were read and checked."""

    def __init__(
        self, store: ByteStore, index: BlobIndex, commit: Commit, *, draft: Manifest | None = None
    ) -> None:
        """`draft` stands in for the manifest of a checkpoint that is still being written."""
        self._store = store
        self._index = index
        self._commit = commit
        self._draft = draft
        self._lists = ChunkLists(index)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, compared with the commit record."""
        if self._draft is not None:
            return self._draft
        key = self._key(layout.MANIFEST)
        manifest = manifests.decode(self._fetch(key, self._commit.manifest_digest), key=key)
        commit = self._commit
        if (manifest.step, manifest.epoch, manifest.write_id) != (commit.step, commit.epoch, commit.write_id):
            raise CorruptObject(f"{key} describes another checkpoint than its commit record.", key=key)
        return manifest

    @cached_property
    def meta(self) -> Meta:
        """The metadata, compared with the manifest."""
        key = self._key(layout.META)
        return metas.decode(self._fetch(key, self.manifest.meta), key=key)

    def load(self, components: Collection[str] | None) -> Snapshot:
        """Return the state, or some components of it; `CorruptObject` at the first fault."""
        meta = self.meta
        snapshot = self.read(components)
        snapshot.promises = {
            name: Promise(kept.fidelity, kept.reason) for name, kept in meta.fidelity.items()
        }
        snapshot.counters = dict(meta.counters)
        return snapshot

    def read(self, components: Collection[str] | None) -> Snapshot:
        """Return the bare state, or some components of it, without what the metadata says of it."""
        entries = self._file_names(components or ())
        wanted = sorted(entries) if components is None else sorted(set(components))
        found = {name: self._document(entries[name]) for name in wanted}
        blobs = self._blobs(found)
        loaded = {
            name: Component(
                name=name,
                roots=read.roots,
                blobs=[*blobs[name]],
                tensors=read.tensors,
                saved={
                    i: Base(Digest(ref.tree), ref.size, ref.chunk)
                    for i, ref in enumerate(read.blobs)
                    if ref.tree is not None
                },
            )
            for name, read in found.items()
        }
        return Snapshot(components=loaded, recheck=partial(self._changed, found, loaded))

    def document(self, component: str) -> Document:
        """Return one component's document, compared with the manifest."""
        return self._document(self._file_names([component])[component])

    def verify(self, components: Collection[str] | None = None, *, births: bool = True) -> list[ObjectFault]:
        """Return everything that is wrong with the checkpoint, or with what some of its components need.

        Without `births`, only what its state needs.
        """
        return list(self._faults(components, births=births))

    def _faults(self, components: Collection[str] | None, *, births: bool) -> Iterator[ObjectFault]:
        key = layout.commit(self._commit.sequence)
        try:
            # As bytes: a metric may be NaN, which equals nothing.
            if seal(read_commit(self._store, key)) != seal(self._commit):
                yield ObjectFault("", key, "", f"{key} is not the record that was listed.")
        except (CorruptObject, UnsupportedFormat, ObjectMissing) as error:
            yield ObjectFault("", key, "", error.message)
        if births and self._commit.birth:
            yield from self._birth_fault(Digest(self._commit.birth))
        try:
            manifest = self.manifest
        except (CorruptObject, UnsupportedFormat) as error:
            yield ObjectFault("", self._key(layout.MANIFEST), self._commit.manifest_digest, error.message)
            return  # nothing else is known without it
        others = {part.birth for part in manifest.ranks} if births else set[str]()
        for name in others - {self._commit.birth, ""}:
            yield from self._birth_fault(Digest(name))
        try:
            _ = self.meta
        except (CorruptObject, UnsupportedFormat) as error:
            yield ObjectFault("", self._key(layout.META), manifest.meta, error.message)
        self._index.refresh()
        user: dict[str, str] = {}
        sizes: dict[Digest, int] = {}
        if components is None:
            sizes = {Digest(digest): size for digest, size in manifest.blobs.items()}
        for name, entry in manifest.documents.items():
            if components is not None and entry.component not in components:
                continue
            try:
                for ref in self._document(name).blobs:
                    for digest, size in self._blobs_of(ref):
                        user.setdefault(digest, entry.component)
                        sizes[digest] = size
            except (CorruptObject, UnsupportedFormat) as error:
                yield ObjectFault(entry.component, self._key(name), entry.digest, error.message)
        for fetched in fetch_blobs(self._index, {name: Destination(size) for name, size in sizes.items()}):
            if (fault := fetched.fault) is not None:
                yield replace(fault, component=user.get(fetched.digest, ""))

    def _file_names(self, wanted: Collection[str]) -> dict[str, str]:
        """Return the file of every component's document; `ConfigError` if a wanted one is not there."""
        entries = {entry.component: name for name, entry in self.manifest.documents.items()}
        unknown = sorted(set(wanted) - entries.keys())
        if unknown:
            raise ConfigError(
                f"{self._commit.directory} has no component {', '.join(map(repr, unknown))}.",
                hint=f"It has: {', '.join(sorted(entries))}.",
            )
        return entries

    def _document(self, name: str) -> Document:
        entry = self.manifest.documents[name]
        key = self._key(name)
        found = documents.decode(self._fetch(key, entry.digest, size=entry.size), entry.format, key=key)
        if found.component != entry.component:
            raise CorruptObject(f"{key} belongs to the component {found.component[:80]!r}.", key=key)
        for ref in found.blobs:
            for digest, size in ref.named():
                if self.manifest.blobs.get(digest) != size:
                    raise CorruptObject(
                        f"{key} names a blob that its manifest does not.", key=key, digest=digest
                    )
        hidden = set(opaque_places(found.roots)) - set(self.manifest.opaque)
        if hidden:
            # Only what the manifest lists is covered by the rule that pickles need a signature.
            raise CorruptObject(
                f"{key} has a pickled part that its manifest does not name: {min(hidden)}.", key=key
            )
        return found

    def contents(self, refs: Collection[BlobRef]) -> list[Bytes]:
        """Return the bytes of these arrays, in their order. All digests have been checked.

        Raises:
            CorruptObject: a chunk is damaged or missing.
        """
        check_room(refs, where=self._commit.directory)
        self._index.refresh()
        found: list[Bytes] = []
        places: dict[Digest, list[memoryview]] = {}
        for ref in refs:
            chunks = self._chunks_of(ref)
            blob = fresh(ref.size)
            found.append(blob)
            memory = blob.data
            for i, digest in enumerate(chunks):
                at = i * ref.chunk
                places.setdefault(digest, []).append(memory[at : at + ref.size_of(i)])
        for name, parts in places.items():
            if len({part.nbytes for part in parts}) > 1:
                raise CorruptObject(
                    f"The chunk {name[:19]} stands in places of different sizes.", digest=name
                )
        wanted = {name: Destination(parts[0].nbytes, tuple(parts)) for name, parts in places.items()}
        for fetched in fetch_blobs(self._index, wanted):
            if fetched.fault is not None:
                raise fetched.fault.error()
        return found

    def _blobs(self, found: dict[str, Document]) -> dict[str, list[Bytes]]:
        contents = iter(self.contents([ref for read in found.values() for ref in read.blobs]))
        return {name: [next(contents) for _ in read.blobs] for name, read in found.items()}

    def _changed(
        self,
        documents: Mapping[str, Document],
        components: Mapping[str, Component],
        suspects: Collection[tuple[str, int]],
    ) -> list[tuple[str, int]]:
        """Return those of the suspects that do not have the digests any more with which they were read."""

        def parts() -> Iterator[tuple[tuple[str, int], list[tuple[memoryview, Digest]]]]:
            for name, i in suspects:
                ref, memory = documents[name].blobs[i], components[name].content(i).data
                pairs = [*zip(chunks_of(memory, ref.chunk), self._chunks_of(ref), strict=True)]
                for at in range(0, len(pairs), TOGETHER):
                    yield (name, i), pairs[at : at + TOGETHER]

        def changed(part: tuple[tuple[str, int], list[tuple[memoryview, Digest]]]) -> tuple[str, int] | None:
            suspect, pairs = part
            return None if all(matches(chunk, digest) for chunk, digest in pairs) else suspect

        with Crew(THREADS, "unbroken-digests") as pool:
            found = set(pool.map(changed, parts()))
        return [suspect for suspect in suspects if suspect in found]

    def _chunks_of(self, ref: BlobRef) -> Iterable[Digest]:
        """Return the chunks of a blob in order; those of a list are read."""
        if ref.tree is None:
            return [Digest(digest) for digest in ref.chunks]
        return self._lists.get(Digest(ref.tree), ref.count)

    def _blobs_of(self, ref: BlobRef) -> Iterator[tuple[Digest, int]]:
        """Yield every blob that makes up an array, with its size: its chunks, and the nodes of its list."""
        if ref.tree is None:
            for i, digest in enumerate(ref.chunks):
                yield digest, ref.size_of(i)
            return
        chunks = self._lists.get(Digest(ref.tree), ref.count)
        seen: set[Digest] = set()
        for node in chunks.nodes_outside(seen):
            seen.add(node.name)
            yield node.name, len(node.data)
            if not node.level:
                yield from ((child, ref.chunk) for child in node.children)
        yield chunks[ref.count - 1], ref.size_of(ref.count - 1)

    def _birth_fault(self, name: Digest) -> Iterator[ObjectFault]:
        try:
            birth.read(self._store, name)
        except (CorruptObject, UnsupportedFormat) as error:
            yield ObjectFault("", layout.birth(name), name, error.message)

    def references(self, lists: ChunkLists, components: Collection[str] | None = None) -> References:
        """Return what the checkpoint, or some of its components, need in packs; chunk lists are read through
        `lists`, and kept there.

        Raises:
            CorruptObject: that cannot be told, because a document or a list is damaged.
        """
        manifest = self.manifest
        names = [
            name
            for name, entry in manifest.documents.items()
            if components is None or entry.component in components
        ]
        found = [ref for name in names for ref in self._document(name).blobs]
        named = (
            frozenset(Digest(digest) for digest in manifest.blobs)
            if components is None
            else frozenset(Digest(digest) for ref in found for digest, _ in ref.named())
        )
        return References(
            named,
            tuple(lists.get(Digest(ref.tree), ref.count) for ref in found if ref.tree is not None),
            births=frozenset(Digest(part.birth) for part in manifest.ranks if part.birth),
        )

    def readable(self, lists: ChunkLists) -> References:
        """Return what of packs that needs which can be read of a damaged checkpoint; nothing without its manifest."""
        try:
            manifest = self.manifest
        except (CorruptObject, UnsupportedFormat, ObjectMissing):
            return References(frozenset())
        found: list[ChunkList] = []
        for name in manifest.documents:
            with suppress(CorruptObject, UnsupportedFormat, ObjectMissing):
                for ref in self._document(name).blobs:
                    with suppress(CorruptObject, UnsupportedFormat, ObjectMissing):
                        if ref.tree is not None:
                            found.append(lists.get(Digest(ref.tree), ref.count))
        return References(
            frozenset(Digest(digest) for digest in manifest.blobs),
            tuple(found),
            births=frozenset(Digest(part.birth) for part in manifest.ranks if part.birth),
        )

    def _fetch(self, key: str, digest: Digest, *, size: int | None = None) -> bytes:
        try:
            if size is not None and (actual := self._store.size(key)) != size:
                raise CorruptObject(f"{key} has {actual} bytes, not {size}.", key=key, digest=digest)
            data = self._store.get(key)
        except ObjectMissing as error:
            raise CorruptObject(f"{key} is missing.", key=key, digest=digest) from error
        if not matches(data, digest):
            raise CorruptObject(f"{key} is damaged: its digest does not fit.", key=key, digest=digest)
        return data

    def _key(self, name: str) -> str:
        return f"{self._commit.directory}/{name}"
