"""Signatures: whether a manifest was written by a holder of our key.

A valid signature is what allows pickled parts to be loaded. It covers the canonical bytes of the
manifest, and through the digests in it every document and blob. It does not hide anything, and it
does not tell a replayed old checkpoint from a new one.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

ALGORITHM = "hmac-sha256"
KEY_BYTES = 32
_DOMAIN = b"unbroken manifest\0"
_NAME_DOMAIN = b"unbroken key name\0"


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """A signature; `key` is the name of the key (not the key), to tell "other key" from "forged"."""

    algorithm: str
    key: str
    value: str


def sign(key: bytes, data: bytes) -> Signature:
    """Return the signature of `data` under `key`."""
    return Signature(algorithm=ALGORITHM, key=key_name(key), value=_mac(key, _DOMAIN + data))


def verify(key: bytes, data: bytes, signature: Signature) -> bool:
    """Whether `signature` was made with `key` over exactly `data`. Takes constant time."""
    expected = _mac(key, _DOMAIN + data)
    same = hmac.compare_digest(expected.encode(), signature.value.encode("utf-8", "replace"))
    return same and signature.algorithm == ALGORITHM


def key_name(key: bytes) -> str:
    """Return a short public name of a key, from which the key cannot be found."""
    return _mac(key, _NAME_DOMAIN)[:16]


def _mac(key: bytes, data: bytes) -> str:
    return hmac.new(key, data, hashlib.sha256).hexdigest()
