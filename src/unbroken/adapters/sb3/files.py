"""The CSV files of Monitor and VecMonitor: building the environment empties them, a restore fills them.

A file is read once: what was read stays in memory as text, and each save reads the rest. It is kept in
two columns, the wall-clock times apart from everything else, so that the files of two runs can be
compared. Both only grow at their end, so a checkpoint stores only the new part.

Not promised: a file that somebody else writes to, and one on another machine's disk.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.adapters.sb3.logs import refill
from unbroken.capture.class_rule import ClassRule
from unbroken.errors import CorruptObject, RestoreFailed
from unbroken.state.nodes import Bytes, Dict, Value

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_TIME_COLUMN = 2


class Rows:
    """The rows of one file so far, and how many bytes of the file they are."""

    def __init__(self) -> None:
        self.header = b""
        self.rows = bytearray()
        """Every line but the first, the time left empty."""
        self.times = bytearray()
        """The times, one a line."""
        self.read = 0

    def extend(self, path: str) -> None:
        """Read what the file has gained. A file that is shorter than what was read is read anew."""
        if os.stat(path).st_size < self.read:
            self.__init__()  # type: ignore[misc]
        with open(path, "rb") as file:
            file.seek(self.read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]  # a row that is being written is read the next time
        self.read += len(new)
        for line in _lines(new):
            if not self.header:
                self.header = line
                continue
            fields = line.split(b",", _TIME_COLUMN + 1)
            if len(fields) > _TIME_COLUMN:
                time_ = fields[_TIME_COLUMN].rstrip(b"\r\n")
                self.times += time_ + b"\n"
                fields[_TIME_COLUMN] = fields[_TIME_COLUMN][len(time_) :]
            self.rows += b",".join(fields)


def _lines(text: bytes) -> list[bytes]:
    # Not `splitlines`, which also splits at a lone carriage return, as a quoted field may hold.
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def joined(header: bytes, rows: bytes, times: bytes) -> bytes:
    """Return the file that these parts were read from. Raises CorruptObject if they do not fit."""
    lines, column = [header], iter(times.split(b"\n")[:-1])
    try:
        for line in _lines(rows):
            fields = line.split(b",", _TIME_COLUMN + 1)
            if len(fields) > _TIME_COLUMN:
                fields[_TIME_COLUMN] = next(column) + fields[_TIME_COLUMN]
            lines.append(b",".join(fields))
    except StopIteration:
        raise CorruptObject("A monitor file has more rows than times.") from None
    return b"".join(lines)


_read: weakref.WeakKeyDictionary[Any, Rows] = weakref.WeakKeyDictionary()


class MonitorCaptor:
    """Captor of Monitor and VecMonitor."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        writer = obj.results_writer
        if not writer or not walk.contents:
            return {}
        rows = _read.setdefault(writer, Rows())
        writer.file_handler.flush()
        rows.extend(writer.file_handler.name)
        clock = {
            "elapsed": time.time() - obj.t_start,
            "header": rows.header.decode("utf-8", "surrogateescape"),
        }
        found: dict[str, Value] = {
            "rows": _bytes(rows.rows, walk),
            "episode_times": _bytes(rows.times, walk),
            "t_start": Dict(v={**clock}),
        }
        return {"file": Dict(v=found)}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        file = extra.get("file")
        parts = file.v if isinstance(file, Dict) and file.v is not None else {}
        rows, times, clock = parts.get("rows"), parts.get("episode_times"), parts.get("t_start")
        start = clock.v if isinstance(clock, Dict) and clock.v is not None else {}
        header, elapsed = start.get("header"), start.get("elapsed")
        if not isinstance(rows, Bytes) or not isinstance(times, Bytes):
            graft.error("was saved without the rows of its file.")
        elif not isinstance(header, str) or not isinstance(elapsed, float):
            graft.error("was saved without the time at which its file begins.")
        elif not obj.results_writer:
            graft.note_at("<file>", "lost", "the checkpoint has a monitor file, and the program writes none.")
        else:
            text = joined(
                header.encode("utf-8", "surrogateescape"),
                graft.bytes_of(rows.b, rows.v).tobytes(),
                graft.bytes_of(times.b, times.v).tobytes(),
            )
            graft.write(_put_back, obj, text, elapsed)


def _bytes(content: bytearray, walk: Walk) -> Bytes:
    b, inline = walk.pack(np.frombuffer(content, np.uint8)) if content else (-1, b"")
    return Bytes(b=b, v=inline)


def _put_back(monitor: Any, content: bytes, elapsed: float) -> None:
    handler = monitor.results_writer.file_handler
    try:
        refill(handler, content)
    except OSError as error:
        raise RestoreFailed(
            f"The monitor file {handler.name} cannot be written: {error.strerror}.",
            hint="Make room or make it writable, and start again; the checkpoint still has its content.",
        ) from error
    _read.pop(monitor.results_writer, None)
    monitor.t_start = time.time() - elapsed


monitor_rule = ClassRule(
    MonitorCaptor(),
    "stable_baselines3.common.monitor:Monitor",
    "stable_baselines3.common.vec_env.vec_monitor:VecMonitor",
)
