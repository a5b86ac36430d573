"""Blocks of code in pages for people, and how each is run.

A page is played from top to bottom in one directory, as a reader would:

* A block whose first line is `# NAME.py`, `# NAME.yaml` and so on is kept under that name; a Python block is run, too.
* A console block is what a person types: each line that begins with `$ ` is run, one that ends in `&` beside those after
  it. Lines without `$ ` are what the command answers: the answer must hold them, in this order, any number standing for
  any other and `…` for anything.
* A Python block whose first line is `# examples/NAME.py` is taken from that file. A line `# …` in it stands for lines
  that are left out. It is compared and not run: the example has a test of its own.
* `<!-- not run: REASON -->` above a block says why it is shown only.

Which page is run by which test is listed in tests/docs/test_blocks.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = "# …"
COMMANDS = {"python": "", "unbroken": "-m unbroken", "torchrun": "-m torch.distributed.run"}
SECONDS = 600.0
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]*?) -->\n+)?^(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```",
    flags=re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w/.-]+\.\w+)\n")
_EXAMPLE = re.compile(r"# (examples/[\w/]+\.py)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: its kind (`python`, `console`, …; empty: none), its line in the page and its text."""

    page: str
    line: int
    kind: str
    text: str
    not_run: str = ""
    """Why it is shown only; empty: it is not."""

    @property
    def source(self) -> Path | None:
        """The example that it is taken from; None where it stands for itself."""
        return source_of(self.text) if self.kind == "python" else None

    @property
    def file(self) -> str:
        """The name under which it is kept; empty where it has none."""
        named = _FILE.match(self.text)
        return named[1] if named and self.source is None else ""


def every_block(page: str) -> list[Block]:
    """Return the blocks of a page, of any kind."""
    text = (ROOT / page).read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("kind")) + 1,
            found["kind"],
            re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            found["why"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def blocks(page: str) -> list[tuple[str, str]]:
    """Return (kind, text) of the Python and console blocks of a page that are meant to be run."""
    return [
        (block.kind, block.text)
        for block in every_block(page)
        if block.kind in ("python", "console") and not block.not_run
    ]


def source_of(block: str) -> Path | None:
    """Return the example that a block is taken from; None where it stands for itself."""
    named = _EXAMPLE.match(block)
    return ROOT / named[1] if named else None


def not_in_its_source(block: str, source: Path) -> list[str]:
    """Return the lines of a block that do not stand in the example, in this order and as they are there.

    Of several the first is to be looked at: nothing after it is found either.
    """
    following = iter(source.read_text().splitlines())
    wanted = [line for line in block.splitlines()[1:] if line and line.strip() != LEFT_OUT]
    # `in` uses the lines up, so the order counts.
    return [line for line in wanted if line not in following]


def missing_from(answer: str, shown: list[str]) -> list[str]:
    """Return the lines of an answer as a page shows it that the real one does not hold, in this order.

    >>> missing_from("goes on at step 812 · 3 parts", ["goes on at step 800 · …"])
    []
    >>> missing_from("a", ["b"])
    ['b']
    """
    following = iter(answer.splitlines())
    return [line for line in shown if line.strip() and not any(map(_like(line).fullmatch, following))]


def _like(shown: str) -> re.Pattern[str]:
    """Return what a line that is shown stands for."""
    parts = re.split(r"(…|\d[\d,.]*|\s+)", shown.strip())
    kinds = {"…": r".*"}
    pattern = "".join(
        kinds.get(part)
        or (r"\d[\d,.]*" if re.match(r"\d", part) else r"\s+" if part and part.isspace() else re.escape(part))
        for part in parts
    )
    return re.compile(rf"\s*{pattern}\s*")


class Stage:
    """A directory in which a page is played, with `python`, `unbroken` and `torchrun` of this environment."""

    def __init__(
        self,
        folder: Path,
        *,
        replaced: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        preloaded: str = "",
    ) -> None:
        """`replaced` says what stands for what in every block; `environment` adds variables; `preloaded` is where
        `tests/preloaded.py` serves, which then stands for `python` and `unbroken` (not for what `prove` starts)."""
        self.folder = folder
        self._replaced = dict(replaced or {})
        (folder / "bin").mkdir(parents=True)
        for name, words in COMMANDS.items():
            file = folder / "bin" / name
            served = f'exec "{sys.executable}" -IS "{ROOT}/tests/preloaded.py" "{preloaded}" {words} "$@"'
            first = f'[ -n "$UNBROKEN_PROGRESS" ] || {served}\n' if preloaded and name != "torchrun" else ""
            file.write_text(f'#!/bin/sh\n{first}exec "{sys.executable}" {words} "$@"\n')
            file.chmod(0o700)
        # What torchrun sets in its children is not for those that a page starts.
        plain = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        self._environment = {
            **plain,
            "PATH": f"{folder / 'bin'}{os.pathsep}{plain['PATH']}",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }

    def play(self, block: Block) -> None:
        """Keep or run one block; one that is not meant to be run is passed over.

        Raises:
            AssertionError: it failed, or answered otherwise than the page shows.
        """
        if block.not_run or block.source is not None:
            return
        text = self._put(block.text)
        file = block.file or (f"block{block.line}.py" if block.kind == "python" else "")
        if file:
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if block.kind == "python":
            self.run(f"python {file}")
        elif block.kind == "console":
            self._type(block, text)

    def run(self, line: str) -> str:
        """Run one line to its end and return what it said on both channels."""
        return self.end(self.start(line))

    def start(self, line: str) -> subprocess.Popen[str]:
        """Start one line, in a process group of its own."""
        return subprocess.Popen(
            line, shell=True, cwd=self.folder, env=self._environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def end(self, process: subprocess.Popen[str]) -> str:
        """Wait for a process and return what it has said."""
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the shell, and what it has started
            raise
        line = str(process.args)
        expected = int(line.startswith("unbroken diff"))  # of two that differ
        assert process.returncode == expected, f"{line}\n{said}"
        return said

    def _type(self, block: Block, text: str) -> None:
        beside: list[subprocess.Popen[str]] = []
        for line, shown in typed(text):
            process = self.start(line.removesuffix("&").rstrip())
            if line.endswith("&"):
                beside.append(process)
                continue
            said = self.end(process)
            lost = missing_from(said, shown)
            assert lost == [], f"{block.page}:{block.line} {line}\nshows {lost[0]!r}, and it said:\n{said}"
        for process in beside:
            self.end(process)

    def _put(self, text: str) -> str:
        for written, real in self._replaced.items():
            text = text.replace(written, real)
        return text


def typed(text: str) -> list[tuple[str, list[str]]]:
    r"""Return each line that is typed in a console block, with the lines of its answer that are shown.

    >>> typed("$ ls\nruns\n$ pwd\n")
    [('ls', ['runs']), ('pwd', [])]
    """
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            assert found, f"nothing was typed before {line!r}"
            found[-1][1].append(line)
    return found
