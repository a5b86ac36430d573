"""A real Chromium, and pages in it that are watched: what they ask for, and what they complain about.

One process of Chromium serves all pages of a test module; each has a context of its own, without what another has stored.
Playwright's loop runs inside this thread while it is open, so a module closes it when it is done: a test elsewhere that
starts a loop would find one running.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
AXE = Path(__file__).parents[2] / ".tools" / "node_modules" / "axe-core" / "axe.min.js"
Scheme = Literal["light", "dark"]
LOCAL = {"file", "data", "blob", "about"}
SERIOUS = {"serious", "critical"}


def missing(why: str) -> NoReturn:
    """Skip by name, except where everything has to run."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def opened() -> Generator[Browser]:
    """A Chromium, until the end of the block."""
    program = shutil.which("chromium")
    if program is None:
        missing("chromium is not installed (scripts/tools installs it)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed (extra test)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page, and what it has done that a page must not do."""

    def __init__(self, page: Page, host: str) -> None:
        self.page = page
        self.host = host
        """The one host and port that it may ask; empty: none at all."""
        self.outside: list[str] = []
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.context.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in LOCAL and url.netloc != self.host:
            self.outside.append(request.url)

    def assert_quiet(self) -> None:
        """It has complained about nothing, and asked nobody else."""
        assert self.complaints == []
        assert self.outside == []

    def follow(self, to: Locator) -> None:
        """Click on what leads to another page, and wait until that is there."""
        with self.page.expect_navigation():
            to.click()

    def enter(self) -> None:
        """Press Enter where it leads to another page, and wait until that is there."""
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def focused(self) -> str:
        """Return what has the focus: its tag, and the words by which it is known."""
        return str(self.page.evaluate(_FOCUSED))

    def tab(self, times: int = 1) -> str:
        """Go on with the Tab key, and return what has the focus then."""
        for _ in range(times):
            self.page.keyboard.press("Tab")
        return self.focused()

    def tab_to(self, words: str, *, most: int = 80) -> None:
        """Go on with the Tab key until what has the focus is known by `words`; it must be seen to have it."""
        passed: list[str] = []
        for _ in range(most):
            passed.append(self.tab())
            if words in passed[-1]:
                assert self.page.evaluate(_SEEN), f"nobody sees that {passed[-1]} has the focus"
                return
        raise AssertionError(f"{words!r} is not among what the Tab key reaches: {passed}")

    def violations(self, *, schemes: Sequence[Scheme] = ("light", "dark")) -> list[str]:
        """Return what axe-core finds to be serious or critical, with the place of each: of all rules in the first of the
        schemes, in the others of the one about colours."""
        if not AXE.exists():
            missing("axe-core is not installed (scripts/tools installs it)")
        # Through the debugger: a page that forbids scripts of others forbids ours in any other way.
        session = self.page.context.new_cdp_session(self.page)
        session.send("Runtime.evaluate", {"expression": AXE.read_text()})
        found: list[str] = []
        for number, scheme in enumerate(schemes):
            self.page.emulate_media(color_scheme=scheme)
            rules = "" if number == 0 else "runOnly: ['color-contrast'],"
            asked = {"expression": _AXE.replace("RULES", rules), "awaitPromise": True, "returnByValue": True}
            answer = cast("list[dict[str, Any]]", session.send("Runtime.evaluate", asked)["result"]["value"])
            found += [f"{scheme}: {one['id']}: {one['places']}" for one in answer if one["impact"] in SERIOUS]
        session.detach()
        return found


@contextmanager
def watched(
    browser: Browser,
    host: str = "",
    *,
    scheme: Scheme = "light",
    size: tuple[int, int] = (1280, 900),
    checked: bool = True,
    scripts: bool = True,
) -> Generator[Watched]:
    """A page of its own; at the end of the block it must have been quiet, if that is to be checked."""
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": size[0], "height": size[1]},
        reduced_motion="reduce",
        java_script_enabled=scripts,
    )
    try:
        page = Watched(context.new_page(), host)
        yield page
        if checked:
            page.assert_quiet()
    finally:
        context.close()


_FOCUSED = """() => {
    const at = document.activeElement;
    const words = at.getAttribute('aria-label') || at.labels?.[0]?.innerText || at.innerText || at.name || at.id || '';
    return `${at.tagName.toLowerCase()} ${words.trim()}`;
}"""
_SEEN = """() => {
    const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
    const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
    return at.matches(':focus-visible') && (ring || style.boxShadow !== 'none') && box.width > 0 && box.height > 0
        && box.bottom > 0 && box.top < innerHeight;
}"""
_AXE = """axe.run(document, {RULES resultTypes: ['violations']}).then(result => result.violations.map(one => ({
    id: one.id, impact: one.impact, places: one.nodes.slice(0, 5).map(node => `${node.target} ${node.failureSummary}`)
        .join(' | '),
})))"""
