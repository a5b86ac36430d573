"""A table that a person reads: with lines and colours on a terminal, aligned words in a pipe.

The plain form never cuts a cell and never wraps, so that `grep` and `awk` see whole values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; `numeric` columns are aligned to the right."""

    name: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with a meaning that a terminal shows as a colour."""

    text: str
    mood: Literal["good", "bad", "quiet"]


STYLE = {"good": "green", "bad": "bold red", "quiet": "dim"}


@dataclass(slots=True)
class Table:
    """Columns and rows of text; `title` is shown above, if there is one."""

    columns: Sequence[Column]
    title: str = ""
    rows: list[tuple[str | Cell, ...]] = field(default_factory=list[tuple["str | Cell", ...]])

    def add(self, *cells: str | Cell) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def plain(self) -> str:
        """Return the table as aligned words, two blanks between columns."""
        head = [column.name for column in self.columns]
        lines = [head, *([text_of(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = [self.title] if self.title else []
        for line in lines:
            cells = (
                word.rjust(width) if column.numeric else word.ljust(width)
                for word, width, column in zip(line, widths, self.columns, strict=True)
            )
            text.append("  ".join(cells).rstrip())
        return "\n".join(text)

    def rich(self) -> RichTable:
        """Return the table for a terminal."""
        table = RichTable(box=box.SIMPLE_HEAD, title=self.title or None, title_justify="left", pad_edge=False)
        for column in self.columns:
            table.add_column(column.name, justify="right" if column.numeric else "left", overflow="fold")
        for row in self.rows:
            # Text, not str: a place such as `a[0]` would be read as markup.
            table.add_row(*(Text(text_of(cell), style=style_of(cell)) for cell in row))
        return table

    def print_to(self, console: Console) -> None:
        """Print in the form that fits where the console writes."""
        if console.is_terminal:
            console.print(self.rich())
        else:
            console.file.write(self.plain() + "\n")


def text_of(cell: str | Cell) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def style_of(cell: str | Cell) -> str:
    return STYLE[cell.mood] if isinstance(cell, Cell) else ""
