"""What went over the wire, as a person wants to see it: JSON as values, text as text, images by their digest."""

from __future__ import annotations

import base64
import math
import re
from typing import Any, cast

import msgspec

BYTES = "$bytes"
MEDIA = "$media"
EVENTS = "text/event-stream"
_DATA = b"data:"
# What `media.Media.lift` writes for an image, and for a text that looks like that.
_TOUCHED = b"unbroken-media"
_NAME = re.compile(r"unbroken-media:(?P<digest>[0-9a-f]{64});(?P<mime>[^\"\\]*)\Z")
_ASIDE = re.compile(r"unbroken-media~+:")


def decoded(body: bytes, content_type: str = "") -> Any:
    r"""Return a body as plain JSON values: what it says if it is JSON, else text, else its bytes in base64.

    Of a stream of events what their data say: a list, or the one. An image becomes {"$media": <digest>, …}.

    >>> decoded(b'{"count": 2}'), decoded(b"no JSON"), decoded(b"\xff"), decoded(b"")
    ({'count': 2}, 'no JSON', {'$bytes': '/w=='}, None)
    """
    if not body:
        return None
    if content_type.startswith(EVENTS):
        data = [line.removeprefix(_DATA).strip() for line in body.splitlines() if line.startswith(_DATA)]
        found = [decoded(part) for part in data]
        return found[0] if len(found) == 1 else found
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _text(body)
    return with_media(value) if _TOUCHED in body else value


def as_object(body: bytes, content_type: str = "") -> dict[str, Any]:
    """Return a body that is a JSON object; any other is an empty one."""
    value = decoded(body, content_type)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """Return a number or a truth value as a number; None of anything else."""
    if isinstance(value, (bool, int, float)):
        try:
            made = float(value)
        except OverflowError:
            return None
        return made if math.isfinite(made) else None
    return None


def with_media(value: Any) -> Any:
    """Return the values of a lifted body with {"$media": <digest>, "type": <MIME type>} for each text that names an image."""
    if isinstance(value, str):
        named = _NAME.match(value)
        if named is not None:
            return {MEDIA: named["digest"], "type": named["mime"]}
        return value.replace("~:", ":", 1) if _ASIDE.match(value) else value
    if isinstance(value, list):
        return [with_media(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: with_media(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _text(body: bytes) -> Any:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {BYTES: base64.b64encode(body).decode()}
