"""A digest that a document carries of itself, so that a reader notices a byte that was changed on the way.

It is computed over the document's canonical text without the entry `_integrity`: JSON with keys sorted by code point, no
blanks, characters beyond ASCII as they are, in UTF-8. Fields that a newer version added count too.

Not promised: that nobody changed the document on purpose. Who can change it can compute the digest again; the
checkpoint that it was made from is what is signed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from unbroken.errors import CorruptObject, UnsupportedFormat

KEY = "_integrity"
ALGORITHM = "sha256"


def canonical(document: Mapping[str, Any]) -> bytes:
    r"""Return the text that the digest is over.

    >>> canonical({"b": [1.5, "é"], "a": None, "_integrity": {}})
    b'{"a":null,"b":[1.5,"\xc3\xa9"]}'
    """
    counted = {key: value for key, value in document.items() if key != KEY}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a document, in hex."""
    return hashlib.sha256(canonical(document)).hexdigest()


def sealed(document: Mapping[str, Any], *, timestamp: str) -> dict[str, Any]:
    """Return the document with its digest in it. `timestamp` says when it was computed: ISO 8601, UTC."""
    entry = {"hash_algorithm": ALGORITHM, "hash_value": digest(document), "timestamp": timestamp}
    return {**document, KEY: entry}


def check(document: Mapping[str, Any]) -> bool:
    """Return whether the document carries a digest; it is then the right one.

    Raises:
        CorruptObject: the document is not what the digest was computed over.
        UnsupportedFormat: the digest is of a kind that this version does not know.
    """
    entry = document.get(KEY)
    if entry is None:
        return False
    claimed = entry if isinstance(entry, Mapping) else {}
    if claimed.get("hash_algorithm") != ALGORITHM:
        raise UnsupportedFormat(
            f"The document's {KEY} names no digest that is known here: {claimed.get('hash_algorithm')!r}.",
            hint=f"Known is {ALGORITHM}. Check the file, or take {KEY} out to read it unchecked.",
        )
    found = digest(document)
    if claimed.get("hash_value") != found:
        raise CorruptObject(
            "The document is not what its digest was computed over: it was changed since.",
            hint=f"Export it again; or, if you changed it yourself, take {KEY} out.",
            digest=found,
        )
    return True
