"""The documentation site in a real Chromium, over a server of the test's own: nobody is kept out of a page, light or dark."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import Scheme, Watched, watched
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.exactness]
pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

PAGES = {
    "start": "index.html",
    "quickstart": "quickstart/sb3.html",
    "reference": "reference/errors.html",
    "tables": "exactness.html",
    "nothing-there": "404.html",
}
WIDE = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.tabIndex)"""


class _Files(SimpleHTTPRequestHandler):
    """Serves files, and writes no line for each."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        del format, args


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host and port at which the site is, built strictly. Asks for the browser: without one it is not needed."""
    made = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=made)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def opened(at: Watched, page: str) -> None:
    at.page.goto(f"http://{at.host}/{page}")
    # The theme puts tables into boxes that scroll, once it has started.
    at.page.wait_for_function(
        "[...document.querySelectorAll('.md-content table:not([class])')].every(one => one.closest('.md-typeset__scrollwrap'))"
    )
    at.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_nobody_is_kept_out_of_a_page_of_the_site(
    browser: Browser, site: str, page: str, scheme: Scheme
) -> None:
    with watched(browser, site, scheme=scheme) as at:
        opened(at, page)
        shown = at.page.locator("body").get_attribute("data-md-color-scheme")
        assert shown == {"light": "default", "dark": "slate"}[scheme]
        assert at.violations(schemes=[scheme]) == []


def test_a_table_is_a_stop_of_the_tab_key_where_it_has_something_to_scroll(
    browser: Browser, site: str
) -> None:
    with watched(browser, site) as at:
        opened(at, "scale.html")
        boxes = at.page.locator(".md-typeset__scrollwrap")
        stops = at.page.locator(".md-typeset__scrollwrap[tabindex='0']")
        assert at.page.evaluate(WIDE) == []
        assert stops.count() == 0
        at.page.set_viewport_size({"width": 390, "height": 844})
        stops.first.wait_for()
        assert 0 < stops.count() < boxes.count()
        assert set(at.page.evaluate(WIDE)) == {0}
        stops.first.focus()
        at.page.keyboard.press("ArrowRight")
        at.page.wait_for_function("document.activeElement.scrollLeft > 0")
        at.page.set_viewport_size({"width": 1280, "height": 900})
        at.page.wait_for_selector(".md-typeset__scrollwrap[tabindex]", state="detached")
