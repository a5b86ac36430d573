"""Copies checkpoints from one run into another, which may lie elsewhere.

The target is written by a writer of its own, so all that holds for a save holds here: packs before the
commit, nothing twice that is there already, a crash leaves garbage at most. Stored bytes are copied as they
are, and whatever is read is checked against its digest; damage ends the copy of that checkpoint.

A checkpoint that the target holds already is passed over, so a copy that was interrupted goes on where it
stopped, checkpoint by checkpoint.

The source may be in training meanwhile, and delete what it does not keep. An object that is missing is damage
only where the commit that needs it still counts, and no pack has come or gone since they were looked at. Not promised: the same commit number, epoch or directory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from unbroken.errors import CorruptObject, ObjectMissing, RunBusy, UnbrokenError, UnsupportedFormat, Untrusted
from unbroken.format import layout
from unbroken.format.digest import matches
from unbroken.format.document import Document
from unbroken.format.manifest import DocumentEntry, Manifest
from unbroken.format.records import Commit
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, all_blobs
from unbroken.repo.encoding import EncodedComponent
from unbroken.repo.fault import ObjectFault
from unbroken.repo.opaque import opaque_places
from unbroken.repo.pipeline import StoredBlob
from unbroken.repo.reader import Reader
from unbroken.repo.repository import Repository
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.saves import SaveRecordWarning
from unbroken.repo.settled import ATTEMPTS, packs_changed
from unbroken.repo.stored import read_stored
from unbroken.store.base import ByteStore
from unbroken.types import Digest


def facts(commit: Commit) -> tuple[object, ...]:
    """Return what a checkpoint and its copies have in common."""
    return (commit.segment, commit.step, commit.position, commit.time, commit.birth)


@dataclass(frozen=True, slots=True)
class Copied:
    """One checkpoint of the source, its commit in the target, and the bytes of blobs that were written for it."""

    source: Commit
    target: Commit
    nbytes: int
    was_there: bool


@dataclass(slots=True)
class _CopiedComponent:
    """One component as it lies in the source; a `Part` of a checkpoint."""

    file_name: str
    entry: DocumentEntry
    data: bytes
    document: Document
    index: BlobIndex
    lists: ChunkLists
    must_write: Callable[[Digest], bool]
    stored: set[Digest]
    nbytes: int = 0

    def blobs(self) -> Iterator[StoredBlob]:
        """Yield every blob of the component that the target lacks.

        Raises:
            CorruptObject: one is damaged.
        """
        for found in read_stored(self.index, list(self._lacking())):
            if isinstance(found, ObjectFault):
                raise found.error()
            self.nbytes += memoryview(found.content).nbytes
            yield found

    def finish(self) -> EncodedComponent:
        """Return the document as it is."""
        refs = self.document.blobs
        return EncodedComponent(
            file_name=self.file_name,
            entry=self.entry,
            data=self.data,
            sizes={digest: size for ref in refs for digest, size in ref.named()},
            lists=tuple(self.lists.get(Digest(ref.tree), ref.count) for ref in refs if ref.tree is not None),
            opaque=tuple(opaque_places(self.document.roots)),
        )

    def _lacking(self) -> Iterator[Digest]:
        for ref in self.document.blobs:
            names: Iterable[str] = ref.chunks
            if ref.tree is not None:
                chunks = self.lists.get(Digest(ref.tree), ref.count)
                names = [*(node.name for node in chunks.nodes()), *chunks]
            for digest in map(Digest, names):
                if digest not in self.stored and self.must_write(digest):
                    self.stored.add(digest)
                    yield digest


def copy(
    source: Repository,
    commits: Iterable[Commit],
    target: Repository,
    writer: RunWriter,
    *,
    anew: bool = False,
    unsigned: bool = False,
) -> Iterator[Copied]:
    """Copy checkpoints in this order; yield each when it is committed. `writer` is that of the target.

    One that the source deletes before it is copied is passed over. `anew`: what the target holds of a checkpoint
    is not trusted, and it becomes another commit there; blobs known to be damaged are replaced. `unsigned`: one that
    another key has signed is copied without any signature.

    Raises:
        CorruptObject: a part of one is damaged or missing; those before it are copied.
        Untrusted: one holds pickled parts that are signed with another key than ours.
        StoreError: the target could not be written, or the source not be read.
    """
    copier = _Copier(source, target, writer, anew=anew, unsigned=unsigned)
    for commit in commits:
        copied = copier.copy(commit)
        if copied is not None:
            yield copied


def copy_newest(source: Repository, target: Repository, writer: RunWriter) -> Copied | None:
    """Copy the newest checkpoint; None if there is none. If the source deletes it meanwhile, the next newest.

    Raises:
        RunBusy: the source deletes each before it is copied.
        CorruptObject, Untrusted, StoreError: as `copy`.
    """
    copier = _Copier(source, target, writer)
    for _ in range(ATTEMPTS):
        commits = source.commits()
        if not commits:
            return None
        copied = copier.copy(commits[0])
        if copied is not None:
            return copied
    raise RunBusy(
        f"The run {source.job!r} deletes its checkpoints before they can be copied.",
        hint="Let it keep more of them (keep_last), or copy when it has ended.",
    )


class _Copier:
    """Copies one checkpoint after the other; what they share is looked up once."""

    def __init__(
        self,
        source: Repository,
        target: Repository,
        writer: RunWriter,
        *,
        anew: bool = False,
        unsigned: bool = False,
    ) -> None:
        self._anew = anew
        self._unsigned = unsigned
        self._source = source
        self._target = target
        self._writer = writer
        self._index = BlobIndex(source.store)
        self._index.refresh()
        self._lists = ChunkLists(self._index)

    def copy(self, commit: Commit) -> Copied | None:
        """Copy a checkpoint; None if the source deletes it meanwhile."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._copy(commit)
            except CorruptObject:
                if self._source.gone(commit):
                    return None
                if not packs_changed(self._index):
                    raise
        return self._copy(commit)

    def _copy(self, commit: Commit) -> Copied:
        source, writer = self._source, self._writer
        manifest = source.manifest(commit)
        there = None if self._anew else _find(self._target, commit, manifest)
        if there is not None:
            return Copied(commit, there, 0, was_there=True)
        foreign = is_foreign(source, commit)
        if foreign and not self._unsigned:
            raise Untrusted(
                f"The checkpoint of step {commit.step} holds pickled parts that are signed with another key.",
                hint="Set UNBROKEN_KEY to the key of its writer: the copy is signed with it again.",
                places=manifest.opaque,
            )
        # Our key vouches for pickled parts only where it has done so before.
        sign = bool(manifest.opaque) and manifest.signature is not None and not foreign
        meta = msgspec.structs.replace(source.meta(commit), job=self._target.job)
        births = {commit.birth, *(part.birth for part in manifest.ranks)}
        for name in map(Digest, sorted(births - {""})):
            writer.copy_birth(name, _object(source.store, layout.birth(name), name))
        reader = Reader(source.store, self._index, commit)
        checkpoints = writer.checkpoints
        stored: set[Digest] = set()
        parts = [
            _CopiedComponent(
                file_name=file,
                entry=entry,
                data=_object(source.store, f"{commit.directory}/{file}", entry.digest),
                document=reader.document(entry.component),
                index=self._index,
                lists=self._lists,
                must_write=checkpoints.must_write,
                stored=stored,
            )
            for file, entry in manifest.documents.items()
        ]
        made = checkpoints.write_parts(parts, meta, stored, sign=sign, ranks=manifest.ranks)
        return Copied(commit, made, sum(part.nbytes for part in parts), was_there=False)


def copy_saves(source: Repository, target: Repository, writer: RunWriter) -> int:
    """Copy what the source knows of its saves, those included whose checkpoints are gone; return how many records were
    written. `writer` is that of the target.

    Raises:
        StoreError: one of the two does not answer.
    """
    return writer.copy_saves(source.saves(), known=target.saves())


def copy_saves_or_warn(source: Repository, target: Repository, writer: RunWriter) -> None:
    """Copy them as `copy_saves` does; warn where that fails, since the checkpoints are copied."""
    try:
        copy_saves(source, target, writer)
    except UnbrokenError as error:
        warnings.warn(SaveRecordWarning.of(error.message), stacklevel=2)


def _find(target: Repository, commit: Commit, manifest: Manifest) -> Commit | None:
    """Return the checkpoint of the target that is a copy of this one, or its original, and lacks no blob."""
    index = BlobIndex(target.store)
    for found in target.commits():
        if facts(found) != facts(commit):
            continue
        try:
            there = target.manifest(found)
            if (there.documents, there.ranks) != (manifest.documents, manifest.ranks):
                continue
            index.refresh()
            needed = all_blobs([Reader(target.store, index, found).references(ChunkLists(index))])
        except (CorruptObject, ObjectMissing, UnsupportedFormat):
            continue  # damaged there: it is copied anew
        if all(index.places(digest) for digest in needed.blobs):
            return found
    return None


def is_foreign(repository: Repository, commit: Commit) -> bool:
    """Whether a checkpoint holds pickled parts that are signed, and not with our key."""
    manifest = repository.manifest(commit)
    if not manifest.opaque or manifest.signature is None:
        return False
    return repository.signature_valid(commit) is not True


def _object(store: ByteStore, key: str, digest: Digest) -> bytes:
    try:
        data = store.get(key)
    except ObjectMissing as error:
        raise CorruptObject(f"{key} is missing.", key=key, digest=digest) from error
    if not matches(data, digest):
        raise CorruptObject(f"{key} is damaged: its digest does not fit.", key=key, digest=digest)
    return data
