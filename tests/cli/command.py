"""The command, called as its console script calls it."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from unbroken.cli import main


@dataclass(frozen=True)
class Answer:
    """What the command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


def unbroken(*words: object, cwd: Path) -> Answer:
    """Run the command in a directory. In this process: starting Python is most of a short command."""
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(word) for word in words])
    finally:
        os.chdir(before)
    return Answer(code, out.getvalue(), err.getvalue())
