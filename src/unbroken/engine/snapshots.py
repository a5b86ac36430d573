"""Takes the snapshots of one training, and holds the memory that they are staged in.

Invariants: fresh memory is touched beside the training, and nobody else uses it before that is over; a run that
something has set apart promises no more than it can.

Not promised: that a snapshot which was not staged stays as it is once training goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from unbroken.engine.background_call import BackgroundCall
from unbroken.engine.memory_limit import free_share
from unbroken.engine.report import lowered
from unbroken.engine.settings import Settings
from unbroken.engine.source import ForeseesSize, RemembersRows, Source
from unbroken.state.snapshot import Snapshot
from unbroken.state.staging import Memory, Staging


class Snapshots:
    """The snapshots of `source`. `inexact` tells what has set the run apart from an undisturbed one."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        memory: Memory | None,
        inexact: Callable[[], tuple[str, ...]],
    ) -> None:
        self._source = source
        self._settings = settings
        self._inexact = inexact
        given = settings.staging
        self._staging = Staging(free_share if given is None else lambda: given, memory)
        self._touching: BackgroundCall | None = None

    @property
    def staged_bytes(self) -> int:
        """How much memory the staging holds."""
        return self._staging.size

    def expect(self) -> None:
        """Touch the memory that the first save will need, beside whatever comes until then."""
        if isinstance(self._source, ForeseesSize):
            # Fresh memory can cost a second a GB. The first save waits for it, not the training's start.
            self._touching = BackgroundCall(partial(self._staging.reserve, self._source.expected_bytes()))

    def take(self) -> Snapshot:
        """Return the state as it is now, where it lies."""
        if not self._settings.incremental:
            self.forget()
        snapshot = self._source.capture()
        snapshot.promises = lowered(snapshot.promises, self._inexact())
        self._finish_touching()
        return snapshot

    def stage(self, snapshot: Snapshot) -> bool:
        """Copy it, so that training may go on. False where the memory does not suffice."""
        return self._staging.take(snapshot)

    def forget(self) -> None:
        """Let the next snapshot build on no checkpoint."""
        if isinstance(self._source, RemembersRows):
            self._source.forget()

    def let_go(self) -> None:
        """Watch the training no more. What was staged lasts until `close`."""
        if isinstance(self._source, RemembersRows):
            self._source.release()

    def close(self) -> None:
        """Give the memory back."""
        self._finish_touching()
        self._staging.release()

    def _finish_touching(self) -> None:
        touching, self._touching = self._touching, None
        if touching is not None:
            touching.wait()  # where it has failed, `stage` will find out
