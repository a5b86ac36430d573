"""Blocks of code in pages for people, and whether those that are taken from an example still stand there.

A Python block whose first line is `# examples/NAME.py` is taken from that file. A line `# …` in it stands for
lines that are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = "# …"


def blocks(page: str) -> list[tuple[str, str]]:
    """Return (kind, text) of the Python and console blocks of a page."""
    text = (ROOT / page).read_text()
    found: list[tuple[str, str]] = re.findall(
        r"^```(python|console)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL
    )
    return found


def source_of(block: str) -> Path | None:
    """Return the example that a block is taken from; None where it stands for itself."""
    named = re.match(r"# (examples/\w+\.py)\n", block)
    return ROOT / named[1] if named else None


def not_in_its_source(block: str, source: Path) -> list[str]:
    """Return the lines of a block that do not stand in the example, in this order and as they are there.

    Of several the first is to be looked at: nothing after it is found either.
    """
    following = iter(source.read_text().splitlines())
    wanted = [line for line in block.splitlines()[1:] if line and line.strip() != LEFT_OUT]
    # `in` uses the lines up, so the order counts.
    return [line for line in wanted if line not in following]
