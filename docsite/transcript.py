"""The terminal of the start page: what a training that was killed really said, drawn as a picture.

`python -m docsite.transcript` trains, kills, starts again and compares (about a minute), and writes
docs/pictures/promise.json (what was typed and said) and promise.svg (the picture of it).

Invariant: the picture shows lines of the record, whole ones, and nothing else; a test draws it again. It moves for less
than five seconds, not at all where the reader wants no motion, and asks for no script and no font.

Not promised: the same steps at the next recording. Where the kill falls is up to the machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import msgspec

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
RECORD, PICTURE = PICTURES / "promise.json", PICTURES / "promise.svg"
INDEX = Path(__file__).parents[1] / "docs" / "index.md"
KILLED_AFTER = 5_000
SECONDS = 4.5
"""How long the picture moves."""
LETTERS = 92
"""Of a line; a longer one is broken."""


class Line(msgspec.Struct, frozen=True):
    """One line of the terminal: typed, said by a program, or a note on what happened to it."""

    kind: Literal["typed", "said", "note"]
    text: str


def script() -> str:
    """Return the training that the start page shows."""
    found = re.search(
        r"^```python\n# train\.py\n(.*?)^```", INDEX.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise LookupError("docs/index.md shows no train.py.")
    return found[1]


def record() -> list[Line]:
    """Train twice, once undisturbed and once killed in the middle, and return what the second showed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(script())
        _train(folder)
        (folder / "runs").rename(folder / "undisturbed")
        lines = [Line("typed", "python train.py")]
        lines += _said(_killed(folder))
        lines += [Line("note", "killed with kill -9, in the middle"), Line("typed", "python train.py")]
        lines += _said(_train(folder))
        compare = "unbroken diff undisturbed/ppo runs/ppo"
        lines.append(Line("typed", compare))
        done = _run([sys.executable, "-m", "unbroken", *compare.split()[1:]], folder)
        if done.returncode != 0:
            raise ArithmeticError(f"The two are not equal:\n{done.stdout}")
        return lines + [
            Line("said", line.rstrip())
            for line in done.stdout.splitlines()
            if re.search(r"\bequal\b|leaves", line)
        ]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNBROKEN_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=_environment(), capture_output=True, text=True, check=False)


def _train(folder: Path) -> str:
    done = _run([sys.executable, "train.py"], folder)
    if done.returncode != 0:
        raise ChildProcessError(done.stderr)
    return done.stderr


def _killed(folder: Path) -> str:
    """Kill a training once it has a checkpoint well behind its beginning, and return what it said."""
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=folder, env=_environment(), stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        steps = [
            int(found[1])
            for file in folder.glob("runs/*/*/steps/*")
            if (found := re.match(r"step_(\d+)", file.name))
        ]
        if max(steps, default=0) > KILLED_AFTER:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise ChildProcessError(f"It ended before it was killed:\n{said}")
    return said


def _said(text: str) -> list[Line]:
    return [Line("said", line) for line in text.splitlines() if line.startswith("unbroken: ")]


def drawn(lines: Iterable[Line]) -> str:
    """Return the picture of a terminal in which these lines appear one after the other."""
    rows: list[tuple[str, str, float]] = []
    shown = list(lines)
    for number, line in enumerate(shown):
        after = SECONDS * number / max(len(shown) - 1, 1)
        rows += [(line.kind, part, after) for part in _broken(line)]
    width, step, top = 880, 22, 46
    height = top + step * len(rows) + 14
    texts = "".join(
        f'<text class="{kind} row" x="20" y="{top + step * number + 8}" style="animation-delay:{after:.2f}s" '
        f'xml:space="preserve">{_marked(kind, part)}</text>\n'
        for number, (kind, part, after) in enumerate(rows)
    )
    dots = "".join(f'<circle cx="{24 + 20 * at}" cy="18" r="6" fill="#3f4b45"/>' for at in range(3))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t">
<title id="t">A terminal: a training is killed, started again, and ends equal to the undisturbed one.</title>
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d7e0da; }}
.typed {{ fill: #ffffff; font-weight: bold; }}
.note {{ fill: #ffb4a2; font-style: italic; }}
.good {{ fill: #86efac; font-weight: bold; }}
.row {{ opacity: 0; animation: show 0.2s linear forwards; }}
@keyframes show {{ to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: reduce) {{ .row {{ opacity: 1; animation: none; }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#10201a"/>
{dots}
{texts}</svg>
"""


def _broken(line: Line) -> list[str]:
    """Return a line in parts that fit; the later ones stand a little to the right."""
    mark = {"typed": "$ ", "said": "", "note": "# "}[line.kind]
    parts: list[str] = []
    rest = mark + line.text
    while len(rest) > LETTERS:
        at = rest.rfind(" ", 20, LETTERS)
        parts.append(rest[:at])
        rest = f"    {rest[at + 1 :]}"
    return [*parts, rest]


def _marked(kind: str, text: str) -> str:
    """Return a line with what matters in it marked: where it goes on, and that it is equal."""
    if kind != "said":
        return escape(text)
    return re.sub(
        r"(goes on at step [\d,]+|\bequal\b|exact: all \d+ parts)",
        r'<tspan class="good">\1</tspan>',
        escape(text),
    )


def main() -> None:
    """Record and draw."""
    lines = record()
    PICTURES.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(msgspec.to_builtins(lines), indent=1, ensure_ascii=False) + "\n")
    PICTURE.write_text(drawn(lines))


def recorded() -> list[Line]:
    """Return what was recorded last."""
    return msgspec.json.decode(RECORD.read_bytes(), type=list[Line])


if __name__ == "__main__":
    main()
