"""The metrics of one run as scalars for TensorBoard, by the step of the newest checkpoint.

Each start has a file of its own, and says that it is one, so that TensorBoard leaves out what an earlier process
has told of later steps.

Not promised: that nothing is told twice. After a restart steps are done again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from unbroken.errors import ConfigError, installing


class Scalars:
    """Writes files of events below `folder`. The first is made when the first scalars come.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, now: Callable[[], float] = time.time) -> None:
        try:
            event = import_module("tensorboard.compat.proto.event_pb2")
            summary = import_module("tensorboard.compat.proto.summary_pb2")
            records = import_module("tensorboard.summary.writer.record_writer")
        except ImportError:
            raise ConfigError(
                "Metrics for TensorBoard need the library tensorboard, which is not installed.",
                hint=f"{installing('tensorboard')}, or leave tensorboard= out of Monitoring.",
            ) from None
        # Generated from protocol buffers: none of these has types.
        self._event: Any = event.Event
        self._session: Any = event.SessionLog
        self._summary: Any = summary.Summary
        self._records: Any = records.RecordWriter
        self._folder = Path(folder).expanduser().absolute()
        self._now = now
        self._writer: Any = None

    def write(self, scalars: Iterable[tuple[str, float]], *, step: int) -> None:
        """Add what the metrics are at a step.

        Raises:
            OSError: it cannot be written.
        """
        moment = self._now()
        writer = self._writer or self._begin(moment, step)
        values = [self._summary.Value(tag=f"unbroken/{name}", simple_value=value) for name, value in scalars]
        event = self._event(wall_time=moment, step=step, summary=self._summary(value=values))
        writer.write(event.SerializeToString())
        writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, moment: float, step: int) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(moment)}.{socket.gethostname()}.{os.getpid()}.unbroken"
        self._writer = writer = self._records((self._folder / name).open("ab"))
        writer.write(self._event(wall_time=moment, file_version="brain.Event:2").SerializeToString())
        begun = self._session(status=self._session.START)
        writer.write(self._event(wall_time=moment, step=step, session_log=begun).SerializeToString())
        return writer
