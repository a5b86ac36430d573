"""TensorBoard, through the writer that the training logs with.

TensorBoard has no marks: these are scalars and a text beside the training's own. They go through its writer, since of two
files that grow in one directory TensorBoard reads only the newer one.

Invariant: where it `purges`, everything that was logged from the step on at which the run goes on is marked as void before
anything else is written, so that no step stands in a curve twice.

Not promised: what programs that do not read TensorBoard's marks make of events that are void.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from unbroken.engine.trackers.place import CHECKPOINT, LOST, RESTART, SECONDS

TEXT = "unbroken/restarts"


class Board:
    """The writer of a training, one of `torch.utils.tensorboard` or of `tensorboardX`.

    `first` tells for a step of the run the first step that the writer is given from there on; without it these are the
    same. `void` is for who knows better from which step of the writer on all is void; None for nothing, in whatever
    loop of a script. `purges` is False where somebody else sees to it.
    """

    kind = "tensorboard"

    def __init__(
        self,
        writer: object,
        *,
        first: Callable[[int], int] | None = None,
        void: Callable[[int], int | None] | None = None,
        purges: bool = True,
    ) -> None:
        self._writer: Any = writer
        self._first: Callable[[int], int] = first or int
        self._void = void
        self._purges = purges
        self._voided: int | None = None

    @property
    def title(self) -> str:
        """What a person calls it."""
        where = getattr(self._writer, "log_dir", None) or getattr(self._writer, "logdir", None)
        return f"TensorBoard in {where}" if where else "TensorBoard"

    @property
    def identity(self) -> Mapping[str, str]:
        """Nothing: the script names the directory."""
        return {}

    def begin(self, *, step: int, segment: int) -> None:
        """Void what an earlier process has logged of steps that come only now.

        Another loop of the same script counts from 0 again, in the same directory: that voids nothing.
        """
        if self._void is not None:
            void = self._void(step)
        else:
            void = self._first(step) if self._purges and not segment else None
        if void is None:
            return
        package = "tensorboardX.proto" if self._is_x else "tensorboard.compat.proto"
        events: Any = import_module(f"{package}.event_pb2")
        start = events.SessionLog(status=events.SessionLog.START)
        self._file.add_event(events.Event(step=void, session_log=start), step=void)
        self._voided = void

    def began(self, where: str) -> None:
        """Do nothing: the script has said where it logs to."""

    @property
    def _is_x(self) -> bool:
        return type(self._file).__module__.partition(".")[0] == "tensorboardX"

    @property
    def _file(self) -> Any:
        """A writer that was closed opens another file for what comes."""
        opened = getattr(self._writer, "_get_file_writer", None)
        return self._writer.file_writer if opened is None else opened()

    def restarted(self, line: str, *, step: int, lost: int | None) -> None:
        """Mark it at the step, and what it says as a text."""
        at = self._first(step)
        if self._voided is not None and self._voided <= at:  # it has voided the mark of that checkpoint, too
            self._writer.add_scalar(CHECKPOINT, step, at)
        self._writer.add_scalar(RESTART, step, at)
        if lost is not None:
            self._writer.add_scalar(LOST, lost, at)
        self._writer.add_text(TEXT, line, at)

    def saved(self, *, step: int, seconds: float) -> None:
        """Mark it at the step."""
        at = self._first(step)
        self._writer.add_scalar(CHECKPOINT, step, at)
        self._writer.add_scalar(SECONDS, seconds, at)

    def flush(self) -> None:
        """Have the file written."""
        self._writer.flush()


def is_board(value: object) -> bool:
    """Whether this is a writer of TensorBoard's files."""
    return all(hasattr(value, name) for name in ("add_scalar", "add_text", "file_writer", "flush"))
