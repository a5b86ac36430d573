"""`unbroken ui` as a person starts it: a process of its own that says under which address it answers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ADDRESS = re.compile(r"http://\S+")
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server at work."""

    entry: str
    """The address that it has printed, with the token in it."""

    @property
    def url(self) -> str:
        """The address of its first page, without a slash at its end."""
        return f"http://{self.host}"

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.entry).netloc


@contextmanager
def serve(root: Path, folder: Path, *words: str) -> Generator[Served]:
    """Serve the runs below `root` until the end of the block; then the server is told to end, and ends in order."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment.pop("UNBROKEN_ROOT", None)
    with (folder / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "unbroken", "ui", root, "--port", "0", *words],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        yield Served(_address(process, folder))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0, (folder / "errors.txt").read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _address(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if found := ADDRESS.search(line):
            return found[0]
    raise AssertionError(f"no address: {said}, {(folder / 'errors.txt').read_text()}")
