"""What changes while one looks: a training that saves and deletes, and a prune that a person carries out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import watched
from tests.browser.serving import Served, serve
from tests.repo.states import meta, snapshot
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def save(root: Path, *steps: int, keep_last: int | None = None) -> None:
    """Train so far that the run gets checkpoints at these steps, and keep only the newest ones if that is asked for."""
    repository = Repository.open(root, "live", create=True)
    with repository.writer() as writer:
        for step in steps:
            writer.write(snapshot(b"%d" % step * 3_000, step=step), meta(step, metrics={"reward": step / 10}))
        if keep_last is not None:
            writer.retain(plan_retention(repository.commits(), keep_last=keep_last))


def steps_of(root: Path) -> list[int]:
    return [commit.step for commit in Repository.open(root, "live").commits()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save(tmp_path / "runs", 10, 20, 30)
    return tmp_path / "runs"


@pytest.fixture
def writing(root: Path, browser: Browser, tmp_path: Path) -> Iterator[Served]:
    """A server that may delete checkpoints."""
    with serve(root, tmp_path, "--allow-write") as served:
        yield served


def test_a_page_follows_a_training_and_leaves_alone_what_a_person_has_done(
    browser: Browser, writing: Served, root: Path
) -> None:
    # The browser itself complains about what is gone, so this page is not quiet.
    with watched(browser, writing.host, checked=False) as at:
        at.page.goto(writing.entry)
        at.page.goto(f"{writing.url}/runs/live")
        at.page.get_by_label("Compare step 20,").check()
        at.page.get_by_label("From step").fill("12")
        save(root, 40, 50)
        at.page.get_by_role("link", name="50", exact=True).wait_for()
        assert at.page.get_by_label("Compare step 20,").is_checked()
        assert at.page.get_by_label("From step").input_value() == "12"
        assert at.page.evaluate("document.activeElement.id") == "step"
        assert "50" in at.page.locator("dl.facts").inner_text()
        # The checkpoint that one is about to look at goes.
        save(root, 60, keep_last=1)
        at.page.get_by_role("link", name="60", exact=True).wait_for()
        assert at.page.get_by_label("Compare step 20,").count() == 0
        # So does the run; a page that polls says what the server says, and shows the run again once it is back.
        (root / "live").rename(root / ".live")
        at.page.get_by_role("heading", name="No such page").wait_for()
        (root / ".live").rename(root / "live")
        at.page.get_by_role("link", name="60", exact=True).wait_for()
        assert at.complaints
        assert all("404" in one for one in at.complaints), at.complaints
        assert at.outside == []
        at.page.goto(f"{writing.url}/runs/live/checkpoints/2")
        assert at.page.locator("h1").inner_text() == "This checkpoint is not there any more"


@pytest.mark.exactness
def test_a_prune_deletes_what_its_plan_says_after_it_was_confirmed_and_not_before(
    browser: Browser, writing: Served, root: Path
) -> None:
    with watched(browser, writing.host) as at:
        at.page.goto(writing.entry)
        at.page.goto(f"{writing.url}/runs/live")
        at.page.get_by_label("Newest checkpoints to keep").fill("1")
        at.follow(at.page.get_by_role("button", name="Plan a prune"))
        at.page.wait_for_selector("#plan-title")
        at.page.get_by_role("button", name="Delete").click()
        assert steps_of(root) == [30, 20, 10], "it was not confirmed"
        assert at.violations() == []
        at.page.get_by_label("Delete what this plan deletes").check()
        at.follow(at.page.get_by_role("button", name="Delete"))
        at.page.wait_for_selector(".verdict")
        assert "2 checkpoints deleted" in at.page.locator("main").inner_text()
        assert steps_of(root) == [30]
