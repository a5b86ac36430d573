"""A run whose newest checkpoint says what a test wants it to say, with digests and checks that all fit.

Whoever can write to a run can do this: nothing that is read is trusted because its digest is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tests.repo.states import meta, snapshot
from unbroken.format import layout, pack
from unbroken.format import manifest as manifests
from unbroken.format.chunks import FAN_OUT, Node, shape
from unbroken.format.compression import BlobCodec
from unbroken.format.digest import digest_of
from unbroken.format.document import BlobRef, Document
from unbroken.format.manifest import Manifest
from unbroken.format.pack import PackWriter
from unbroken.repo.repository import Repository
from unbroken.repo.seal import seal
from unbroken.types import Digest

PACK = "3f9c2e01ab44e9"


def honest(root: Path) -> Repository:
    """Write a run with one small checkpoint."""
    repository = Repository.open(root, "run", create=True)
    with repository.writer() as writer:
        writer.write(snapshot(step=1), meta(1))
    return repository


def add_blobs(repository: Repository, blobs: Mapping[Digest, bytes]) -> None:
    """Put blobs into a pack of their own."""
    writer = PackWriter(PACK)
    stored = [(digest, len(data), BlobCodec.RAW, data) for digest, data in blobs.items()]
    repository.store.put(layout.pack(PACK), b"".join(writer.stream(stored)))
    repository.store.put(layout.index(PACK), pack.encode_index(writer.index()))


def forge(
    repository: Repository,
    change: Callable[[Document], None],
    *,
    component: str = "policy_weights",
    manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> None:
    """Change a component's document, and all that vouches for it."""
    commit = repository.commits()[0]
    before = repository.manifest(commit)
    name = before.document(component)
    assert name is not None
    document = repository.document(commit, component)
    change(document)
    data = msgspec.json.encode(document)
    repository.store.put(f"{commit.directory}/{name}", data)
    entry = msgspec.structs.replace(before.documents[name], digest=digest_of(data), size=len(data))
    named = {digest: size for ref in document.blobs for digest, size in ref.named()}
    after = msgspec.structs.replace(
        before, documents={**before.documents, name: entry}, blobs={**before.blobs, **named}
    )
    encoded = manifests.encode(manifest(after))
    repository.store.put(f"{commit.directory}/{layout.MANIFEST}", encoded)
    record = msgspec.structs.replace(commit, manifest_digest=digest_of(encoded))
    repository.store.put(layout.commit(commit.sequence), seal(record))


def with_blob(ref: BlobRef) -> Callable[[Document], None]:
    """Return the change that puts an array in the place of a component's first."""

    def change(document: Document) -> None:
        document.blobs[0] = ref

    return change


def repeating(chunk: bytes, count: int) -> tuple[Digest, dict[Digest, bytes]]:
    """Return the list of `count` times the same chunk, as its root and the few blobs that make it up."""
    levels = shape(count)
    blobs = {digest_of(chunk): chunk}
    full, last = digest_of(chunk), digest_of(chunk)
    below = count
    for level in range(len(levels)):
        rest = (below - 1) % FAN_OUT + 1
        whole = Node.of(level, [full] * FAN_OUT) if levels[level] > 1 else None
        end = Node.of(level, [full] * (rest - 1) + [last])
        blobs |= {node.name: node.data for node in (whole, end) if node is not None}
        full, last = (whole or end).name, end.name
        below = levels[level]
    return last, blobs
