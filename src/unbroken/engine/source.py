"""What the engine needs of a training: something that can be captured and restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unbroken.state.graft import Graft
from unbroken.state.snapshot import Snapshot


class Source(Protocol):
    """The live side of a run. Implemented by adapters; knows nothing of files."""

    def capture(self) -> Snapshot:
        """Return the whole state. True snapshot: later training never shows in it."""
        ...

    def skeleton(self) -> Snapshot:
        """Return the state without array contents and generator states: the birth document."""
        ...

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: bool = False) -> Graft:
        """Lay `saved` over the live objects. Touches nothing. At the places `keep` the live value
        stays (a setting that the user changed). Opaque parts are refused unless `trusted`."""
        ...
