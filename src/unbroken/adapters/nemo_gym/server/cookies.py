"""NeMo Gym's session cookie: made, and read.

A payload in base64, the time of signing and a signature, as Starlette's sessions have it (a timestamp signer of
itsdangerous 2 with SHA-1). It is written out here because what runs beside no web framework has to read it too.

Not promised: that nobody forges one. NeMo Gym's secret is the name of the cookie.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

MAX_AGE = 14 * 24 * 3600
"""Seconds that a cookie holds."""
SKEW = 300
"""Seconds by which the clock of whoever signed a cookie may be ahead of the one here, where that is allowed."""

_SALT = b"itsdangerous.Signer" + b"signer"


def sign(secret: str, payload: Mapping[str, Any], *, now: float | None = None) -> str:
    """Return the value of a cookie that carries `payload`."""
    moment = int(time.time() if now is None else now)
    data = base64.b64encode(json.dumps(dict(payload)).encode())
    stamp = _unpadded(moment.to_bytes((moment.bit_length() + 7) // 8 or 1, "big"))
    signed = data + b"." + stamp
    return (signed + b"." + _unpadded(_signature(secret, signed))).decode("ascii")


def read(secret: str, value: str, *, now: float | None = None, skew: int = 0) -> dict[str, Any] | None:
    """Return what a cookie carries; None if it was not signed with `secret`, too long ago, or more than `skew` seconds ahead."""
    signed, _, signature = value.encode("latin-1", "replace").rpartition(b".")
    given = _decoded(signature)
    if given is None or not hmac.compare_digest(given, _signature(secret, signed)):
        return None
    data, _, stamp = signed.rpartition(b".")
    moment = int.from_bytes(_decoded(stamp) or b"", "big")
    age = int(time.time() if now is None else now) - moment
    if not -skew <= age <= MAX_AGE:
        return None
    try:
        payload = json.loads(base64.b64decode(data))
    except ValueError:
        return None
    return payload if isinstance(payload, dict) else None


def found(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the cookies of a request by their names."""
    cookies: dict[str, str] = {}
    for key, header in headers:
        if key.lower() == b"cookie":
            for part in header.decode("latin-1").split(";"):
                name, equals, value = part.partition("=")
                if equals:
                    cookies[name.strip()] = value.strip().strip('"')
    return cookies


def _signature(secret: str, signed: bytes) -> bytes:
    key = hashlib.sha1(_SALT + secret.encode(), usedforsecurity=False).digest()
    return hmac.new(key, signed, hashlib.sha1).digest()


def _unpadded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decoded(text: bytes) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
