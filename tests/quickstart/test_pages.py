"""Each quickstart page holds its file as it is, and shows a start that went on and came to an end."""

from __future__ import annotations

import re

import pytest

from tests.quickstart.terminal import FILES, LINE, QUICKSTARTS, ROOT, Quickstart

INDEX = (ROOT / "docs" / "quickstart" / "README.md").read_text()
every = pytest.mark.parametrize("quickstart", QUICKSTARTS, ids=lambda one: one.name)


@every
def test_the_page_holds_the_whole_file(quickstart: Quickstart) -> None:
    text = (FILES / quickstart.file).read_text()
    assert f"# examples/quickstart/{quickstart.file}\n{text}```\n" in quickstart.page.read_text()


@every
def test_a_file_is_short(quickstart: Quickstart) -> None:
    assert 15 <= len((FILES / quickstart.file).read_text().splitlines()) <= 60


@every
def test_the_page_shows_a_kill_a_resume_and_an_end(quickstart: Quickstart) -> None:
    prompt = re.escape(f"$ {quickstart.command}")
    found = re.search(
        rf"```text\n{prompt}\n(.*?)Killed\n{prompt}\n(.*?)```", quickstart.page.read_text(), re.DOTALL
    )
    assert found is not None
    until, after = (part.splitlines() for part in found.groups())
    assert any("starts at step 0" in line for line in until)
    assert any(re.search(r"goes on at step [1-9]", line) for line in after)
    assert all(LINE.fullmatch(line) for line in (*until, *after) if not line.startswith("$ "))
    assert any(re.search(r"[0-9a-f]{12}$|[0-9a-f]{64}", line) for line in after)


def test_every_page_is_a_quickstart_and_stands_in_the_index() -> None:
    pages = {path.name for path in (ROOT / "docs" / "quickstart").glob("*.md")} - {"README.md"}
    assert pages == {one.page.name for one in QUICKSTARTS}
    assert set(re.findall(r"\]\(([a-z0-9-]+\.md)\)", INDEX)) == pages
    assert {path.name for path in FILES.iterdir() if path.is_file()} == {one.file for one in QUICKSTARTS}
