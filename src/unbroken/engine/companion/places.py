"""Places of the state as bytes: a place can hold what is no Unicode text (the name of a file, say)."""

from __future__ import annotations

from collections.abc import Collection


def places_as_bytes(places: Collection[str]) -> list[bytes]:
    """Return places as bytes, sorted.

    >>> places_as_bytes({"model/b", "model/a"})
    [b'model/a', b'model/b']
    """
    return [place.encode("utf-8", "surrogatepass") for place in sorted(places)]


def places_of_bytes(data: Collection[bytes]) -> frozenset[str]:
    """Undo `places_as_bytes`."""
    return frozenset(place.decode("utf-8", "surrogatepass") for place in data)
