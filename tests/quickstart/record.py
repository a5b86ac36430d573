"""Writes into the pages what quickstarts say when they are killed and started again.

`python -m tests.quickstart.record NAME…`; without names all whose framework is installed. Of a quickstart that does not end as
the undisturbed one nothing is written.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.quickstart.terminal import FILES, QUICKSTARTS, Quickstart, Terminal

KILLED = "Killed"
"""What a shell says of a process that was ended by SIGKILL."""


def carried_out(quickstart: Quickstart, folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return what was said undisturbed, until the kill, and after it."""
    undisturbed = Terminal(quickstart, folder / "undisturbed").finish()
    killed = Terminal(quickstart, folder / "killed")
    until = killed.kill_in_the_middle()
    return undisturbed, until, killed.finish()


def results(said: list[str]) -> list[str]:
    """Return the lines with which a quickstart ends."""
    return [line for line in said if not line.startswith(("unbroken:", "$ "))]


def transcript(quickstart: Quickstart, until: list[str], after: list[str]) -> str:
    """Return what a terminal shows, as it stands on the page."""
    prompt = f"$ {quickstart.command}"
    lines = [prompt, *until, KILLED, prompt, *after]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def write(quickstart: Quickstart, said: str) -> None:
    """Put the file and the transcript into the page, in the place of those that are there."""
    file = FILES / quickstart.file
    named = f"# examples/quickstart/{quickstart.file}\n"
    prompt = re.escape(f"$ {quickstart.command}\n")
    text = quickstart.page.read_text()
    for old, new in (
        (rf"{re.escape(named)}.*?^```\n", f"{named}{file.read_text()}```\n"),
        (rf"^```text\n{prompt}.*?^```\n", said),
    ):
        shown = re.compile(old, re.MULTILINE | re.DOTALL)
        assert shown.search(text), f"{quickstart.page} has no place for it"
        text = shown.sub(partial(_instead, new), text, count=1)
    quickstart.page.write_text(text)


def _instead(new: str, _: re.Match[str]) -> str:
    return new


def main() -> None:
    wanted = sys.argv[1:]
    for quickstart in QUICKSTARTS:
        if wanted and quickstart.name not in wanted:
            continue
        if importlib.util.find_spec(quickstart.needs) is None:
            print(f"{quickstart.name}: {quickstart.needs} is not installed, nothing is written")
            continue
        with tempfile.TemporaryDirectory() as folder:
            undisturbed, until, after = carried_out(quickstart, Path(folder))
        if results(undisturbed) != results(after) or not results(after):
            sys.exit(f"{quickstart.name}: undisturbed {results(undisturbed)}, killed {results(after)}")
        said = transcript(quickstart, until, after).replace(f"{folder}/killed", "/home/me")
        print(f"{quickstart.name}\n{said}", flush=True)
        write(quickstart, said)


if __name__ == "__main__":
    main()
