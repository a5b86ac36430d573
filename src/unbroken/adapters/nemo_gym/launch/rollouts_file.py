"""Makes the output of `ng_collect_rollouts` readable again after a kill.

A process that is killed while it writes leaves half a line at the end of its file, and `+resume_from_cache=true` then ends with a
JSONDecodeError. The torn rollout was not finished for anybody; without the line it is collected again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from unbroken.errors import ConfigError, CorruptObject


def trim_torn_line(path: Path | str) -> int:
    """Cut a torn last line off, and return how many bytes it had; 0 if there is none.

    The bytes are kept in `<path>.torn`. A file that is damaged elsewhere is left alone.

    Raises:
        ConfigError: there is no such file, or it cannot be written.
        CorruptObject: a line that is not the last one is no JSON.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}.", hint="Name the output file."
        ) from error
    end = content.rfind(b"\n") + 1
    last = content[end:]
    lines = content[:end].splitlines()
    if not last and lines and not _is_json(lines[-1]):  # torn in the middle of blocks: the end came first
        last = lines.pop() + b"\n"
        end -= len(last)
    for number, line in enumerate(lines, 1):
        if line.strip() and not _is_json(line):
            raise CorruptObject(
                f"Line {number} of {file} is no JSON, and it is not the last one.",
                hint="Look at that line: it was not torn by a kill.",
            )
    if not last:
        return 0
    try:
        if _is_json(last):  # whole, but for its end
            with open(file, "ab") as out:
                out.write(b"\n")
            return 0
        with open(f"{file}.torn", "ab") as kept:
            kept.write(last.rstrip(b"\n") + b"\n")
            kept.flush()
            os.fsync(kept.fileno())  # before the cut: else a power loss takes both
        with open(file, "r+b") as out:
            out.truncate(end)
            os.fsync(out.fileno())
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}.", hint="Check its owner and mode."
        ) from error
    return len(last)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
