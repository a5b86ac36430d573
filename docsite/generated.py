"""The pages that the code writes, and whether those in `docs/` are they."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docsite import api, cli, configuration

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "\n<!-- `scripts/docs --write` has written this page from the code. -->\n"
"""At the end: a page begins with its title."""
PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli.page,
    "reference/configuration.md": configuration.page,
    "reference/api.md": api.page,
}


def text(page: str) -> str:
    """Return what a page has to hold."""
    return PAGES[page]().rstrip() + "\n" + NOTE


def write() -> list[str]:
    """Write the pages anew, and return those that have changed."""
    changed = [
        page for page in PAGES if not (DOCS / page).exists() or (DOCS / page).read_text() != text(page)
    ]
    for page in changed:
        (DOCS / page).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / page).write_text(text(page))
    return changed
