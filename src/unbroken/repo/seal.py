"""A check inside the small records that nothing else vouches for.

A commit record vouches, by digests, for every byte of its checkpoint. Who vouches for the commit
record? It does itself: its last field, `check`, is the digest of the file with the digits of that
field written as zeros. So one flipped bit is seen wherever it falls, also in a field that this
version does not know, and the file stays plain JSON.

Not promised: protection against somebody who means it. See `format.signature`.
"""

from __future__ import annotations

import re

from unbroken.errors import CorruptObject, InternalError
from unbroken.format import wire
from unbroken.format.digest import DIGEST_BYTES, digest_of

_BLANK = b"0" * (2 * DIGEST_BYTES)
_TAIL = re.compile(rb',\s*"check":\s*"b3:([0-9a-f]{64})"\s*}\s*\Z')


def seal(record: wire.Record) -> bytes:
    """Return the bytes of a record with its check."""
    return seal_json(wire.encode(record))


def seal_line(record: wire.Record) -> bytes:
    """Return a record with its check as one line, for files that grow by lines."""
    body = wire.encode(record, indent=0)[:-1]
    return _sealed(body + b',"check":"b3:', b'"}\n')


def unseal(data: bytes, kind: type[wire.R], *, key: str) -> wire.R:
    """Return the record in `data`.

    Raises:
        CorruptObject: the check is missing or does not fit, or the record is not of this kind.
        UnsupportedFormat: it was written by a newer version.
    """
    unseal_json(data, key=key)
    return wire.decode(data, kind, key=key)


def seal_json(body: bytes) -> bytes:
    """Return a JSON object that has at least one field, with a check added as its last field."""
    if not body.endswith(b"}") or len(body) < len(b'{"a":0}'):
        raise InternalError("Only a JSON object with a field can be sealed.")
    return _sealed(body[:-1].rstrip() + b',\n  "check": "b3:', b'"\n}\n')


def _sealed(head: bytes, tail: bytes) -> bytes:
    digits = digest_of([head, _BLANK, tail]).removeprefix("b3:").encode()
    return head + digits + tail


def unseal_json(data: bytes, *, key: str) -> None:
    """Raise `CorruptObject` unless `data` is exactly what was sealed."""
    match = _TAIL.search(data)
    if match is None:
        raise CorruptObject(f"{key} is damaged: its check is missing.", key=key)
    found = digest_of([data[: match.start(1)], _BLANK, data[match.end(1) :]])
    if found != f"b3:{match[1].decode()}":
        raise CorruptObject(f"{key} is damaged: its check does not fit.", key=key, digest=found)
