"""``manifest.json``: everything that a checkpoint consists of, by digest and size.

The digest of this file's bytes stands in the commit record; so a commit vouches for every byte of the
checkpoint. Where a blob lies is not said here: index objects say that, and may be rewritten.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from unbroken.errors import CorruptObject
from unbroken.format import signature as signatures
from unbroken.format import wire
from unbroken.format.digest import DigestField
from unbroken.format.records import BirthField, Count, EpochField, Record, StepField, WriteIdField
from unbroken.format.signature import Signature
from unbroken.types import Digest

DocumentFormat: TypeAlias = Literal["json", "msgpack"]

FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_%+,=@-][A-Za-z0-9_%+,=@.-]{0,199}\Z")]
"""A file directly in the checkpoint's directory: neither hidden nor anywhere else."""


class DocumentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One component's document."""

    component: str
    digest: DigestField
    size: Count
    format: DocumentFormat = "json"


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one of several ranks adds to a checkpoint beside components that carry its number."""

    birth: BirthField = ""


class Manifest(Record, frozen=True, kw_only=True, tag="manifest"):
    """What one checkpoint consists of."""

    job: str
    step: StepField
    epoch: EpochField
    write_id: WriteIdField
    meta: DigestField
    documents: dict[FileName, DocumentEntry]
    blobs: dict[DigestField, Count]
    """Every blob that the documents name, with its uncompressed size."""
    opaque: list[str] = []
    """Places that hold pickles."""
    ranks: list[RankPart] = []
    """One entry a rank; none where a single process has written the checkpoint."""
    signature: Signature | None = None

    def document(self, component: str) -> str | None:
        """Return the file name of a component's document, or None."""
        return next((name for name, entry in self.documents.items() if entry.component == component), None)


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of ``manifest.json``: sorted, so that equal manifests give equal bytes."""
    return wire.encode(manifest)


def decode(data: bytes, *, key: str = "manifest.json") -> Manifest:
    """Return the manifest; only `CorruptObject` and `UnsupportedFormat` are raised."""
    manifest = wire.decode(data, Manifest, key=key)
    components = [entry.component for entry in manifest.documents.values()]
    if len(set(components)) != len(components):
        raise CorruptObject(f"{key} names a component twice.", key=key)
    return manifest


def canonical(manifest: Manifest) -> bytes:
    """Return the bytes that a signature covers: compact, keys sorted, without the signature."""
    return wire.encode(msgspec.structs.replace(manifest, signature=None), indent=0)


def signed(manifest: Manifest, key: bytes) -> Manifest:
    """Return the manifest with a signature under `key`."""
    return msgspec.structs.replace(manifest, signature=signatures.sign(key, canonical(manifest)))


def signature_valid(manifest: Manifest, key: bytes) -> bool | None:
    """Whether the signature is valid under `key`; None if there is none."""
    if manifest.signature is None:
        return None
    return signatures.verify(key, canonical(manifest), manifest.signature)


__all__ = [
    "Digest", "DocumentEntry", "DocumentFormat", "FileName", "Manifest", "RankPart", "canonical", "decode", "encode",
    "signature_valid", "signed",
]  # fmt: skip
