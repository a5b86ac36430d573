"""What the other tests here look with sees what it is there for: on pages that are wrong in just one way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.exactness]
"""Whoever changes the instruments runs this: `pytest -m exactness tests/browser/test_instruments.py`."""
GOOD = """<!doctype html><html lang="en"><head><title>Good</title><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>a:focus-visible{outline:2px solid #04c}</style></head>
<body><main><h1>Good</h1><p>Words.</p><a href="#a">first</a> <a href="#b">second</a></main></body></html>"""


def page(folder: Path, text: str) -> str:
    (folder / "page.html").write_text(text)
    return (folder / "page.html").as_uri()


def test_a_page_without_fault_is_quiet_has_no_violation_and_shows_what_has_the_focus(
    browser: Browser, tmp_path: Path
) -> None:
    with watched(browser) as at:
        at.page.goto(page(tmp_path, GOOD))
        assert at.violations() == []
        at.tab_to("second")
        assert at.focused() == "a second"


def test_a_request_to_another_host_and_a_complaint_are_seen(browser: Browser, tmp_path: Path) -> None:
    asks = GOOD.replace("</main>", '<img alt="x" src="http://127.0.0.1:9/x.png"></main>')
    with watched(browser, checked=False) as at:
        at.page.goto(page(tmp_path, asks))
        assert any("Content Security Policy" in one for one in at.complaints)
        with pytest.raises(AssertionError):
            at.assert_quiet()
    with watched(browser, checked=False) as other:
        other.page.goto(page(tmp_path, asks.replace("default-src", "img-src *; default-src")))
        assert other.outside == ["http://127.0.0.1:9/x.png"]


@pytest.mark.parametrize(
    ("fault", "name"),
    [("<p style='color:#ccc'>pale</p>", "color-contrast"), ("<button></button>", "button-name")],
    ids=["pale", "nameless"],
)
def test_what_keeps_people_out_is_found(browser: Browser, tmp_path: Path, fault: str, name: str) -> None:
    with watched(browser) as at:
        at.page.goto(page(tmp_path, GOOD.replace("</main>", f"{fault}</main>")))
        assert [found.split(": ")[1] for found in at.violations(schemes=["light"])] == [name]


def test_a_focus_that_nobody_sees_is_no_focus(browser: Browser, tmp_path: Path) -> None:
    with watched(browser) as at:
        at.page.goto(page(tmp_path, GOOD.replace("outline:2px solid #04c", "outline:none")))
        with pytest.raises(AssertionError, match="nobody sees"):
            at.tab_to("second")
