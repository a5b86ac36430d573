"""What the trainer holds of one server: what the next checkpoint will carry, and from where on to ask.

Invariant: all media are held that the segments name. Not promised: media that no record names any more. They go when the
segments are merged.
"""

from __future__ import annotations

from unbroken.adapters.nemo_gym.control import Exported, Status
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.trainer.cut import Since
from unbroken.adapters.nemo_gym.trainer.payload import ServerPart
from unbroken.adapters.nemo_gym.trainer.segments import Segments


class Held:
    """The records of one server up to a mark of its log."""

    def __init__(self, segments: Segments | None = None) -> None:
        self._segments = Segments() if segments is None else segments
        self._first = b""
        self._shared = b""
        self._media: dict[str, bytes] = {}
        self.since = Since()

    def lacks(self, exported: Exported) -> set[str]:
        """Return the digests of media that the records of an export name, and that are neither in it nor held.

        A server gives each blob once. One that was named by nobody for a while, and so was forgotten here, would be
        missing in the checkpoint: its server is then asked for everything.
        """
        named = {digest for record in exported.records for digest in Media.named(record.data)}
        return named - self._media.keys() - exported.media.keys()

    @classmethod
    def of(cls, part: ServerPart, *, continued: bool) -> Held:
        """Return what a checkpoint holds of a server. `continued`: it goes on from its own log, which is the same."""
        held = cls(Segments(part.segments))
        held._shared = part.shared
        held._media = dict(part.media)
        if continued:
            held.since = Since(part.lineage, part.mark)
        return held

    def apply(self, exported: Exported) -> None:
        """Take over what the server has exported."""
        self._media.update(exported.media)
        self._segments.apply(exported)
        self._shared = exported.shared
        self.since = Since(exported.lineage, exported.mark)
        self._forget_media()

    def forget(self) -> None:
        """Ask for everything the next time: what was exported last may have been lost on the way."""
        self.since = Since()

    def part(self, status: Status) -> ServerPart:
        """Return what a checkpoint carries."""
        return ServerPart(
            status=status,
            lineage=self.since.lineage,
            mark=self.since.mark,
            shared=self._shared,
            segments=tuple(self._segments.blobs()),
            media=dict(self._media),
        )

    def _forget_media(self) -> None:
        blobs = self._segments.blobs()
        first = blobs[0] if blobs else b""
        if self._media and first is not self._first:  # merged: only now may a name be gone for good
            named = {digest for blob in blobs for digest in Media.named(blob)}
            self._media = {digest: data for digest, data in self._media.items() if digest in named}
        self._first = first
