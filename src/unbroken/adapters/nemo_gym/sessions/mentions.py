"""Whether a value has the id of a session anywhere in it: as a key, a part of a key, an entry, a value of an object, or a word of a text.

Not promised: ids that letters or digits stand right beside, or that lie behind more than so many parts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from unbroken.adapters.nemo_gym.sessions.live import kind_of

_WORD = re.compile(r"[0-9A-Za-z-]+")
_LONGEST = 4096


def mentions(value: object, sessions: Collection[str], most: int) -> bool:
    """Say whether one of `sessions` is in `value`, as far as its first `most` parts go."""
    waiting: deque[object] = deque([value])
    seen: set[int] = set()
    while waiting and most > 0:
        part = waiting.popleft()
        most -= 1
        if isinstance(part, str):
            if part in sessions or any(word in sessions for word in _WORD.findall(part, 0, _LONGEST)):
                return True
        elif id(part) not in seen and not kind_of(part):
            seen.add(id(part))
            waiting.extend(_parts(part))
    return False


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for pair in list(cast("Mapping[object, object]", value).items()):
            yield from pair
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from list(cast("Collection[object]", value))
    else:
        fields: dict[str, Any] = getattr(value, "__dict__", None) or {}
        yield from list(fields.values())
        for base in type(value).__mro__:
            names: str | Collection[str] = getattr(base, "__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                yield getattr(value, name, None)
