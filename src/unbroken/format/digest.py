"""Digests: the identity of bytes.

A digest names its algorithm, so that one run can hold blobs of both kinds. Two contents never share
a digest for any purpose of this package; a digest says nothing about who wrote the bytes (see
`signature`).
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Annotated, Protocol, TypeAlias

import blake3
import msgspec

from unbroken.errors import CorruptObject
from unbroken.format.buffers import Buffer, Content, pieces
from unbroken.types import Digest

DIGEST_BYTES = 32

DigestField: TypeAlias = Annotated[Digest, msgspec.Meta(pattern=r"^(?:b3|sha256):[0-9a-f]{64}\Z")]
"""A digest in a record: the decoder refuses any other text."""


class Algorithm(str, Enum):
    """The digest algorithms. The values are the prefixes of digests and never change."""

    BLAKE3 = "b3"
    SHA256 = "sha256"


class _Hash(Protocol):
    def update(self, data: Buffer, /) -> object: ...
    def digest(self) -> bytes: ...


class Digester:
    """Computes a digest of bytes that arrive in pieces."""

    __slots__ = ("_algorithm", "_hash")

    def __init__(self, algorithm: Algorithm = Algorithm.BLAKE3) -> None:
        self._algorithm = algorithm
        self._hash: _Hash = blake3.blake3() if algorithm is Algorithm.BLAKE3 else hashlib.sha256()

    def update(self, data: Buffer) -> None:
        """Add more bytes."""
        self._hash.update(data)

    def digest(self) -> Digest:
        """Return the digest of all bytes so far."""
        return join(self._algorithm, self._hash.digest())


def digest_of(data: Content, *, algorithm: Algorithm = Algorithm.BLAKE3) -> Digest:
    """Return the digest of `data`, which may be given in pieces.

    >>> digest_of(b"")[:11]
    'b3:af1349b9'
    """
    digester = Digester(algorithm)
    for piece in pieces(data):
        digester.update(piece)
    return digester.digest()


def join(algorithm: Algorithm, raw: bytes) -> Digest:
    """Return the text form of a digest given as bytes."""
    return Digest(f"{algorithm.value}:{raw.hex()}")


def split(digest: str) -> tuple[Algorithm, bytes]:
    """Return the algorithm and the bytes of a digest; `CorruptObject` if it is none."""
    prefix, _, text = digest.partition(":")
    try:
        algorithm, raw = Algorithm(prefix), bytes.fromhex(text)
    except ValueError:
        raise CorruptObject(f"{digest[:80]!r} is not a digest.", digest=digest[:80]) from None
    if len(raw) != DIGEST_BYTES or text != raw.hex():
        raise CorruptObject(f"{digest[:80]!r} is not a digest.", digest=digest[:80])
    return algorithm, raw


def matches(data: Content, digest: str) -> bool:
    """Whether `data` has this digest, by the algorithm that the digest names."""
    return digest_of(data, algorithm=split(digest)[0]) == digest


__all__ = [
    "DIGEST_BYTES",
    "Algorithm",
    "Buffer",
    "Digest",
    "DigestField",
    "Digester",
    "digest_of",
    "join",
    "matches",
    "split",
]
