"""Bytes on their way: whole or in pieces, never copied without need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, Union, cast

Buffer: TypeAlias = Union[bytes, bytearray, memoryview]
"""Contiguous bytes. Arrays are handed over as `memoryview`."""

Content: TypeAlias = Union[Buffer, Iterable[Buffer]]
"""Bytes, whole or in pieces that are consumed once."""


def pieces(data: Content) -> Iterable[Buffer]:
    """Return the content as pieces."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return (cast("Buffer", data),)  # a memoryview is an iterable of numbers, too
    return data
