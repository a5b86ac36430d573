"""The site builds strictly, asks for nothing from elsewhere, and shows each page as its file says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docsite.links import anchors
from tests.pages import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")
from docsite.hooks import BESIDE, decisions, for_the_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `scripts/docs` builds it."""
    made = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "WARNING" not in said
    assert "INFO" in said, "a build that says nothing does not count its warnings either"
    return made


class Looked(HTMLParser):
    """What a page asks for by itself, its anchors, and the text of its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.anchors: set[str] = set()
        self.paragraphs: list[str] = []
        self._inside = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        fetched = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
        if (name := fetched.get(tag)) and name in found and found.get("rel") != "canonical":
            self.asked.append(found[name])
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "p":
            self.paragraphs.append("")
            self._inside = 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._inside = 0

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.paragraphs[-1] += data


PAGES = sorted(file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md"))


def looked_at(site: Path, page: str) -> Looked:
    return Looked((site / address_of(page)).read_text())


def address_of(page: str) -> str:
    """Return where the site has a page: a README stands for its folder."""
    return re.sub(r"(^|/)README\.html$", r"\1index.html", page.removesuffix(".md") + ".html")


def test_every_page_is_in_the_navigation_and_in_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] or "index.html" for entry in index["docs"]}
    start = (site / "index.html").read_text()
    navigation = start[start.index("md-nav--primary") : start.index('class="md-content"')]
    for page in [*PAGES, *BESIDE.values(), "design/index.md"]:
        address = address_of(page)
        assert address in found, page
        assert f'href="{address}"' in navigation, page


def test_no_page_asks_for_anything_from_another_server(site: Path) -> None:
    asked = {
        (file.relative_to(site).as_posix(), address)
        for file in site.rglob("*.html")
        for address in Looked(file.read_text()).asked
        if re.match(r"(?:[a-z]+:)?//", address)
    }
    assert asked == set()
    sheets = "".join(file.read_text() for file in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\s]*", sheets) == []


def test_no_list_and_no_table_is_swallowed_by_a_paragraph(site: Path) -> None:
    """A forge begins a list below a line of text; the site wants an empty line before it."""
    swallowed = [
        (page, line)
        for page in PAGES
        if not page.startswith("reference/api")
        for paragraph in looked_at(site, page).paragraphs
        for line in paragraph.splitlines()
        if re.match(r"(?:[*-] |\d+\. |\||```)", line)
    ]
    assert swallowed == []


def test_headings_have_the_anchors_that_the_files_have_on_a_forge(site: Path) -> None:
    lost = [
        (page, anchor)
        for page in PAGES
        for anchor in sorted(anchors((ROOT / "docs" / page).read_text()) - looked_at(site, page).anchors)
    ]
    assert lost == []


def test_every_public_name_stands_on_the_reference_with_its_text(site: Path) -> None:
    page = looked_at(site, "reference/api.md")
    named = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/api.md").read_text(), flags=re.MULTILINE)
    assert [name for name in named if name not in page.anchors] == []
    assert not any(">>>" in paragraph for paragraph in page.paragraphs)


@pytest.mark.parametrize(
    ("text", "page", "source", "shown"),
    [
        ("[g](guide.md#a)", "scale.md", "", "[g](guide.md#a)"),
        ("[g](../ARCHITECTURE.md)", "scale.md", "", "[g](architecture.md)"),
        ("[g](../../README.md)", "design/001-x.md", "", "[g](../overview.md)"),
        ("[g](docs/guide.md#a)", "architecture.md", "", "[g](guide.md#a)"),
        ("[d](docs/design)", "architecture.md", "", "[d](design/index.md)"),
        ("[tests/a.py](../tests/a.py)", "scale.md", "", "`tests/a.py`"),
        ("[a test](../tests/a.py)", "scale.md", "", "a test (`tests/a.py`)"),
        ("[a test](../tests/a.py)", "scale.md", "https://x.org/u", "[a test](https://x.org/u/blob/main/tests/a.py)"),
        ("`[a](../b.py)` [x](https://y.org)", "scale.md", "", "`[a](../b.py)` [x](https://y.org)"),
    ],
)  # fmt: skip
def test_a_link_that_leaves_the_pages_holds_on_the_site(
    text: str, page: str, source: str, shown: str
) -> None:
    assert for_the_site(text, page, source) == shown


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "design"
    page = decisions(folder)
    assert [file.name for file in sorted(folder.glob("0*.md")) if f"]({file.name})" not in page] == []
