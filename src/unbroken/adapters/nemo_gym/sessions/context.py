"""What a session holds, for people: small, and in JSON.

Texts are cut after 2,000 characters, lists and dicts after 100 entries, nesting after 8 levels and the whole after
2,000 parts; what was cut is said. Images and the like in texts are named by their kind and size. Whatever JSON does not know
stands as its class and digest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from unbroken.adapters.nemo_gym.sessions.digests import TooLarge, digest_of
from unbroken.adapters.nemo_gym.sessions.live import name_of

LONGEST = 2_000
WIDEST = 100
DEEPEST = 8
MOST = 2_000
_DIGESTED = 100_000
_INLINE = 256


def view(value: Any) -> Any:
    """Return a value as people read it."""
    return _View().of(value, 0)


def in_words(value: Any) -> str:
    """Say in a few words what a value is."""
    cls = name_of(type(value))
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{cls} of {' x '.join(str(side) for side in cast('tuple[int, ...]', shape)) or 'one value'}"
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return f"{cls} with {len(cast('list[Any]', value))} entries"
    return cls


class _View:
    def __init__(self) -> None:
        self._left = MOST

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if value is None or type(value) in (bool, int):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$object": "float", "value": repr(value)}
        if type(value) is str:
            return _text(value)
        if type(value) not in (dict, list, tuple):
            return _object(value)
        if depth == DEEPEST or self._left <= 0:
            return {"$cut": in_words(value)}
        if isinstance(value, dict):
            return self._dict(cast("dict[object, object]", value), depth)
        entries: list[Any] = [self.of(entry, depth + 1) for entry in self._some(list(value))]
        if len(entries) < len(value):
            entries.append({"$cut": f"{len(value) - len(entries)} more"})
        return entries

    def _dict(self, value: dict[object, object], depth: int) -> Any:
        shown = self._some(list(value.items()))
        result = {str(key): self.of(item, depth + 1) for key, item in shown}
        if len(shown) < len(value):
            result["$cut"] = f"{len(value) - len(shown)} more"
        return result

    def _some(self, entries: list[Any]) -> list[Any]:
        return entries[: max(1, min(WIDEST, self._left))]


def _text(text: str) -> Any:
    if text.startswith("data:") and len(text) > _INLINE:
        return {"$media": text[5:].partition(";")[0][:80], "characters": len(text)}
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _object(value: Any) -> Any:
    cls: type = type(value)
    shown = {"$object": name_of(cls)}
    try:
        shown["digest"] = digest_of(value, most=_DIGESTED)
    except (TooLarge, RecursionError):
        shown["size"] = "large"
    return shown
