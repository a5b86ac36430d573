"""The files that SB3's logger writes (`progress.csv`, `progress.json`, `log.txt`): they go on where they stood.

SB3 opens them anew at each start, so a script that is started again begins with empty files. A restore
puts back what they held at the checkpoint, and nothing that was logged after it: the rows that follow
are logged once. A file only grows at its end as a rule, so a checkpoint stores only the new part.

The text itself holds times, and the order of a CSV's columns follows Python's hashes. For the comparison
of two runs there is a digest beside it, of every value but the times, in an order of its own.

Not promised: files that an output format of the user's own writes, what something else wrote into these, and
a matplotlib figure that waits to be written at the moment of a save. That one is left out, and said.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.capture.class_rule import ClassRule
from unbroken.capture.growing import GrowingFile
from unbroken.capture.whole_file import cannot_be_written
from unbroken.state.graft import Difference
from unbroken.state.nodes import INLINE_BYTES, Bytes, Dict, List, Value, escape

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

MODULE = "stable_baselines3.common.logger"
FILES = "files"
TIMES = frozenset({"time/fps", "time/time_elapsed"})
"""What SB3 logs of the clock."""
_KINDS = {"CSVOutputFormat": "csv", "JSONOutputFormat": "json", "HumanOutputFormat": "text"}


def kind_of(output: object) -> str:
    """Return how an output format writes, "" for one that writes no file of its own."""
    kind = next(
        (_KINDS[c.__name__] for c in type(output).__mro__ if c.__module__ == MODULE and c.__name__ in _KINDS),
        "",
    )
    return "" if kind == "text" and not getattr(output, "own_file", False) else kind


class LogFile(GrowingFile):
    """What one file held when it was read last. Its digest knows no times, and no order of keys."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__()

    def begin(self) -> None:
        """Know nothing of it."""
        super().begin()
        self._tag = ""

    def _said(self, lines: list[str]) -> Iterable[str]:
        if self.kind == "json":
            return map(_of_json, lines)
        return self._rows(lines, _sorted) if self.kind == "csv" else self._cells(lines)

    def _cells(self, lines: list[str]) -> Iterator[str]:
        """Yield what tables for people say; how wide they are follows from the times in them."""
        for line in lines:
            if not line.startswith("| "):
                if line.strip("-") and not line.startswith("Logging to "):
                    yield line
                continue
            key, _, value = (cell.strip() for cell in line.strip("| ").partition("|"))
            self._tag = key if key.endswith("/") and not value else self._tag
            if self._tag + key not in TIMES:
                yield f"{key}|{value}"


def _of_json(line: str) -> str:
    try:
        return _sorted(json.loads(line).items())
    except (ValueError, AttributeError):  # not written by SB3
        return line


def _sorted(items: Iterable[tuple[str, Any]]) -> str:
    return json.dumps(sorted((key, value) for key, value in items if key not in TIMES))


_read: weakref.WeakKeyDictionary[Any, LogFile] = weakref.WeakKeyDictionary()


def files_of(logger: Any) -> dict[str, Any]:
    """Return the output formats of a logger that write files, by the names of these."""
    found: dict[str, Any] = {}
    for output in getattr(logger, "output_formats", ()):
        if kind_of(output) and not output.file.closed:
            name, count = os.path.basename(output.file.name), 1
            while name in found:
                count += 1
                name = f"{os.path.basename(output.file.name)}#{count}"
            found[name] = output
    return found


class LoggerCaptor:
    """Captor of SB3's Logger."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        if not walk.contents:
            return {}
        return {FILES: Dict(v={name: _captured(output, walk) for name, output in files_of(obj).items()})}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        node = extra.get(FILES)
        saved = node.v if isinstance(node, Dict) and node.v is not None else {}
        outputs = files_of(obj)
        if not hasattr(obj, "output_formats"):
            graft.write(
                vars(obj).update, {"dir": None, "output_formats": []}
            )  # built for a model not trained yet
        for name, file in saved.items():
            parts = file.v if isinstance(file, Dict) and file.v is not None else {}
            text, columns = parts.get("text"), parts.get("columns")
            if not isinstance(text, Bytes) or not isinstance(columns, List):
                graft.error(f"was saved without the text of {name}.")
            elif name not in outputs:
                _note(graft, name, "lost", "was written, and the program writes it no more.")
            else:
                content = graft.bytes_of(text.b, text.v).tobytes()
                keys = [key for key in columns.v if isinstance(key, str)]
                graft.write(_put_back, outputs[name], content, keys)
        for name in outputs.keys() - saved.keys():
            _note(graft, name, "fresh", "was not written before, and begins here.")


def _note(graft: Graft, name: str, level: str, detail: str) -> None:
    graft.differences.append(Difference(level, f"{graft.place}/<{FILES}>/{escape(name)}", detail))


def _captured(output: Any, walk: Walk) -> Value:
    file = _read.setdefault(output, LogFile(kind_of(output)))
    try:
        output.file.flush()
        file.read_from(output.file.name)
    except OSError as error:
        walk.note("not captured", f"{output.file.name} cannot be read: {error.strerror}")
    # Without a copy: a text that grows becomes another one.
    b = walk.adopt(np.frombuffer(file.text, np.uint8)) if len(file.text) > INLINE_BYTES else -1
    return Dict(
        v={
            "text": Bytes(b=b, v=b"" if b >= 0 else file.text),
            "columns": List(v=list(getattr(output, "keys", ()))),
            "digest": file.digest(),
        }
    )


def _put_back(output: Any, content: bytes, keys: list[str]) -> None:
    try:
        refill(output.file, content)
    except OSError as error:
        raise cannot_be_written(f"The log file {output.file.name}", error) from error
    if hasattr(output, "keys"):
        output.keys = keys
    _read.pop(output, None)


def drop_figures(logger: Any) -> None:
    """Forget values whose figure did not come back: writing them would end the training."""
    for name, value in list(logger.name_to_value.items()):
        if type(value).__name__ == "Figure" and type(value).__module__ == MODULE and value.figure is None:
            for held in (logger.name_to_value, logger.name_to_count, logger.name_to_excluded):
                held.pop(name, None)


def refill(file: Any, content: bytes) -> None:
    """Let an open text file hold `content`, and be written to after it."""
    file.flush()
    file.seek(0)
    file.truncate()
    file.buffer.write(content)
    file.flush()
    file.seek(0, os.SEEK_END)


logger_rule = ClassRule(LoggerCaptor(), f"{MODULE}:Logger")
