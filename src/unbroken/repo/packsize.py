"""What packs and blobs take on the disk: stored bytes, and what describes them in pack and index."""

from __future__ import annotations

import msgspec

from unbroken.format import pack
from unbroken.format.pack import PackEntry, PackIndex


def pack_bytes(index: PackIndex) -> int:
    """Return the bytes of a pack and of its index object."""
    described = len(pack.encode_index(index))
    return pack.HEADER_BYTES + sum(entry.length for entry in index.entries) + 2 * described + pack.TAIL_BYTES


def entry_bytes(entry: PackEntry) -> int:
    """Return the bytes that one blob takes: its entry, and its lines in the index inside and beside the pack."""
    return entry.length + 2 * len(msgspec.msgpack.encode(entry))
