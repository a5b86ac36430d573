"""A server's records as a checkpoint carries them: a first segment with all, later ones with what changed.

Invariant: a segment that did not change is the same bytes object, so a save pays for what changed only. A later record
of a key stands for the earlier ones; an empty one means that it is not kept any more.

Not promised: the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from unbroken.adapters.nemo_gym.control import Exported, Record
from unbroken.errors import CorruptObject

MERGE_AT = 0.5
"""Later segments that hold more than this part of the first one are merged with it."""
MOST = 64
"""More later segments than this are merged with each other: a restart reads each of them."""

_decode = msgspec.msgpack.Decoder(list[Record]).decode


class Segments:
    """The records of one server."""

    def __init__(self, blobs: Iterable[bytes] = ()) -> None:
        self._blobs = list(blobs)

    def apply(self, exported: Exported) -> None:
        """Take over what a server has exported.

        Raises:
            CorruptObject: a segment that was there before cannot be read.
        """
        if exported.complete:
            now = {record.key: record.data for record in exported.records if record.data}
            if now != self.records() or not self._blobs:
                self._blobs = [_segment(now)] if now else []
            return
        if not exported.records:
            return
        later = {record.key: record.data for record in exported.records}
        self._blobs.append(_segment(later))
        sizes = [len(blob) for blob in self._blobs]
        if sum(sizes[1:]) > MERGE_AT * sizes[0]:
            now = self.records()
            self._blobs = [_segment(now)] if now else []
        elif len(self._blobs) > MOST:
            self._blobs[1:] = [_segment(_newest(self._blobs[1:]))]

    def blobs(self) -> list[bytes]:
        """Return the segments, each a msgpack list of records."""
        return list(self._blobs)

    def records(self) -> dict[str, bytes]:
        """Return the records that are kept, by key."""
        return read_segments(self._blobs)


def read_segments(blobs: Iterable[bytes]) -> dict[str, bytes]:
    """Return the records that segments amount to.

    Raises:
        CorruptObject: one cannot be read.
    """
    return {key: data for key, data in _newest(blobs).items() if data}


def _newest(blobs: Iterable[bytes]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for blob in blobs:
        try:
            found.update((record.key, record.data) for record in _decode(blob))
        except msgspec.DecodeError as error:
            raise CorruptObject(f"A segment of records cannot be read: {error}.") from error
    return found


def _segment(records: Mapping[str, bytes]) -> bytes:
    # Sorted: equal records are equal bytes, in whatever order a server gave them.
    return msgspec.msgpack.encode([Record(key=key, data=records[key]) for key in sorted(records)])
