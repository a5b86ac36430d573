"""Every link in a page for people leads somewhere: to a file that exists, to a heading that stands in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from docsite.links import anchors, by_reference, links, slug
from tests.pages import ROOT

PLACES = ("*.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.md", "changes/*.md")
PAGES = sorted({file.relative_to(ROOT).as_posix() for place in PLACES for file in ROOT.glob(place)})


def test_there_are_pages() -> None:
    assert {"README.md", "ARCHITECTURE.md", "docs/guide.md", "docs/reference/errors.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_anchor_of_a_page_resolves(page: str) -> None:
    here = ROOT / page
    text = here.read_text()
    missing: list[str] = []
    for link in links(text):
        if link.external:
            continue
        target = (folder_of(page) / link.path).resolve() if link.path else here
        inside = target.is_relative_to(ROOT)
        if not inside or not target.exists() or (link.anchor and link.anchor not in _anchors(target)):
            missing.append(link.target)
    assert missing == []


def folder_of(page: str) -> Path:
    """Return where the links of a page begin: those of a change begin where the changelog lies that it goes into."""
    return ROOT if page.startswith("changes/") and page != "changes/README.md" else (ROOT / page).parent


def _anchors(target: Path) -> set[str]:
    return anchors(target.read_text()) if target.suffix == ".md" else set()


@pytest.mark.parametrize("page", PAGES)
def test_every_address_elsewhere_is_well_formed(page: str) -> None:
    text = (ROOT / page).read_text()
    wrong: list[str] = []
    for link in links(text):
        parts = urlsplit(link.target)
        if link.external and not (parts.scheme == "https" and "." in (parts.hostname or "")):
            wrong.append(link.target)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_links_stand_where_they_are_read(page: str) -> None:
    assert by_reference((ROOT / page).read_text()) == []


def test_nothing_that_a_page_leads_to_is_ignored_by_git() -> None:
    """A link to a file that only this machine has resolves here and nowhere else."""
    targets = {
        folder_of(page).joinpath(link.path).resolve().relative_to(ROOT).as_posix()
        for page in PAGES
        for link in links((ROOT / page).read_text())
        if link.path and not link.external
    }
    asked = subprocess.run(
        ["git", "check-ignore", "--stdin"], cwd=ROOT, input="\n".join(sorted(targets)), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if asked.returncode == 128:
        pytest.skip("this is no checkout of git")
    assert asked.stdout.split() == []


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("What a save costs", "what-a-save-costs"),
        ("`SIGTERM`: what happens", "sigterm-what-happens"),
        ("A [link](a.md) in it", "a-link-in-it"),
        ("snake_case stays", "snake_case-stays"),
        ("1. The document", "1-the-document"),
    ],
)
def test_a_heading_gets_the_anchor_that_a_forge_gives_it(title: str, anchor: str) -> None:
    assert slug(title) == anchor


def test_what_stands_in_code_is_no_link_and_no_heading() -> None:
    text = "# A\n```sh\n# B\n[x](y.md)\n```\n`[a](b.md)` and [c `d`](e.md#f)\n"
    assert anchors(text) == {"a"}
    assert [(link.path, link.anchor) for link in links(text)] == [("e.md", "f")]
