"""The reference of the command, from the help that it prints.

Invariant: everything that `--help` says of a command stands on the page, and nothing else does but headings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

WIDE = 10_000
"""Columns of a terminal in which every option stands on one line."""
INTRODUCTION = """\
# The command `unbroken`

What `unbroken COMMAND --help` says. A *run* is its directory or its URL; `RUN@STEP` is one of its checkpoints. Every command
also takes `--help`, and `--debug`, which shows the traceback of an error.

| exit status | says, for every command |
|---|---|
| 0 | yes, or done |
| 1 | the answer is no: a checkpoint is damaged, two states differ |
| 2 | it could not be done: wrong arguments, nothing there, a proof that could not be carried out |
| 70 | a bug in Unbroken |
| 130 | interrupted |
| 141 | the reader of its output went away |
"""


@dataclass(frozen=True, slots=True)
class Help:
    """What a command says of itself: how it is called, paragraphs, and tables by their titles."""

    usage: str
    paragraphs: tuple[str, ...]
    tables: dict[str, tuple[tuple[str, str], ...]]


def parsed(text: str) -> Help:
    r"""Return the parts of a help text.

    >>> parsed("Usage: a [X]\n\n  Does b.\n\nOptions:\n  --c <int>  How many.\n  -h\n").tables
    {'Options': (('--c <int>', 'How many.'), ('-h', ''))}
    """
    usage, _, rest = text.partition("\n")
    paragraphs: list[str] = []
    tables: dict[str, list[tuple[str, str]]] = {}
    rows: list[tuple[str, str]] | None = None
    for line in rest.splitlines():
        if not line.strip():
            continue
        if not line.startswith(" "):
            rows = tables.setdefault(line.rstrip(":"), [])
        elif rows is None:
            paragraphs.append(line.strip())
        else:
            name, *said = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            rows.append((name, said[0] if said else ""))
    return Help(
        usage.removeprefix("Usage: "),
        tuple(paragraphs),
        {title: tuple(found) for title, found in tables.items()},
    )


def page() -> str:
    """Return the whole page."""
    import typer

    from unbroken.cli.app import app

    root: Any = typer.main.get_command(app)
    context = root.make_context("unbroken", [], resilient_parsing=True, **_wide())
    parts = [INTRODUCTION, _options(parsed(root.get_help(context)))]
    parts += [
        part
        for name, command in root.commands.items()
        for part in _sections(command, name, context, f"unbroken {name}", 2)
    ]
    return "\n".join(parts)


def _wide() -> dict[str, int]:
    return {"max_content_width": WIDE, "terminal_width": WIDE}


def _sections(command: Any, name: str, parent: Any, called: str, level: int) -> list[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, **_wide())
    said = parsed(command.get_help(context))
    text = "\n\n".join(
        [f"{'#' * level} {called}", f"```text\n{said.usage}\n```", *map(_prose, said.paragraphs)]
    )
    parts = [f"{text}\n", _options(said)]
    for inner, one in getattr(command, "commands", {}).items():
        parts += _sections(one, inner, context, f"{called} {inner}", level + 1)
    return [part for part in parts if part]


def _options(said: Help) -> str:
    """Return arguments and options as one table; what every command has is left out."""
    rows = [
        (f"`{name}`", _prose(about))
        for title, found in said.tables.items()
        if title in ("Arguments", "Options")
        for name, about in found
        if name not in ("-h, --help", "--debug")
    ]
    if not rows:
        return ""
    lines = "".join(f"| {name} | {about} |\n" for name, about in rows)
    return f"| | |\n|---|---|\n{lines}"


def _prose(text: str) -> str:
    """Return a text of the command as Markdown: options and what is in angle brackets as code."""
    kept = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(kept), 2):
        kept[at] = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", kept[at])
        kept[at] = kept[at].replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
        # What became code above is code, without marks.
        kept[at] = re.sub(r"`[^`]*`", lambda found: found[0].replace("\\", ""), kept[at])
    return "".join(kept)
