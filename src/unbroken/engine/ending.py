"""How an engine ends: closed by the script, by the end of a `with` block, or at the interpreter's exit.

Invariant: an error of the training is never hidden by one of ours.

Not promised: an end in order where the process is killed; the next start tells that it was.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING

from unbroken.engine.saying import say
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from typing_extensions import Self


class EndsInOrder(ABC):
    """What ends by `_end`, once, and only in the process that has begun it."""

    @property
    @abstractmethod
    def _is_ours(self) -> bool:
        """Whether there is something to end, and it is for this process to do."""

    @abstractmethod
    def _end(self, reason: str = "") -> None:
        """Wait for the last save, note `reason` and give the run back. Raises as `close` does."""

    @abstractmethod
    def _leave(self, error: BaseException | None = None) -> None:
        """Once all has ended: raise what ends the process, if a signal has told it to. `error` is the training's."""

    def close(self) -> None:
        """Wait for the last save, say that the run ended in order, and give it back.

        The run is given back in any case.

        Raises:
            SaveFailed: the last save was not written, or the end of the run not noted.
            Fenced, AmbiguousCommit: see `unbroken.errors`; in the place of SaveFailed.
            Preempted, KeyboardInterrupt: a signal has told the process to end; all is given back by then.
        """
        if self._is_ours:
            self._end()
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = self._is_ours
        try:
            if ours:
                self._end(_why(error))
        except UnbrokenError as failure:
            if error is None:
                raise
            # The error of the training is the one to see; ours is told beside it.
            say(f"unbroken: {failure}")
        if ours:
            self._leave(error)

    def _at_exit(self) -> None:
        if not self._is_ours:
            return
        error = getattr(sys, "last_value", None)
        try:
            self._end(_why(error))
        except UnbrokenError as failure:
            say(f"unbroken: {failure}")


def _why(error: BaseException | None) -> str:
    """Return what the run's history says of an end by an error; an end that was asked for is told of elsewhere."""
    if not isinstance(error, Exception):
        return ""
    return f"{type(error).__name__}: {error}"[:500]
