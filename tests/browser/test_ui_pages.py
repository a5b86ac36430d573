"""The pages of `unbroken ui` in a real Chromium: a server that is a process of its own, runs that are real."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import Watched, watched
from tests.browser.runs import CHECKPOINTS, KILLED_AT, MARKUP, RESUMED_AT, SESSIONS, Root
from tests.browser.serving import Served
from unbroken.ui.charts.curves import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow
MARKS = "name => [...document.querySelector('#chart-reward .plot').data.find(trace => trace.name === name).x]"
SHOWN = """name => document.querySelector('#chart-reward .plot').data?.some(
    trace => trace.name === name && trace.visible === true && trace.y.length)"""
PAGES = {
    "list": "/",
    "run": "/runs/killed",
    "no-checkpoint": "/runs/bare",
    "checkpoint": "/runs/killed/checkpoints/10",
    "damaged": "/runs/damaged/checkpoints/3",
    "other-run": "/runs/killed/checkpoints/10/compare",
    "other-checkpoint": "/runs/killed/checkpoints/10/compare?run=many",
    "not-compared": "/runs/killed/difference?a=10&b=1&other=many",
    "component": "/runs/killed/checkpoints/10/component?name=training_state",
    "data": "/runs/killed/data/reward",
    "sessions": "/runs/sessions/checkpoints/2/sessions",
    "session": "/runs/sessions/checkpoints/2/session?server=counter&key=s-00007",
}


@pytest.fixture
def at(browser: Browser, served: Served) -> Iterator[Watched]:
    """A page that has been let in, and is quiet to the end."""
    with watched(browser, served.host) as at:
        at.page.goto(served.entry)
        yield at


def head(at: Watched) -> str:
    return at.page.locator("h1").inner_text()


def table(at: Watched, name: str) -> Locator:
    return at.page.locator(f".tablewrap[aria-label$='{name}']")


def caption(at: Watched, name: str) -> str:
    return table(at, name).locator("caption").inner_text()


def test_from_the_list_to_the_marks_of_kills_in_a_run(at: Watched) -> None:
    assert "token" not in at.page.url
    at.page.wait_for_selector("tr[data-key='killed'] .badge")
    assert at.page.locator("tr[data-key='killed'] .badge").inner_text() == "finished"
    assert at.page.locator("tbody tr").count() == 6
    at.follow(at.page.get_by_role("link", name="killed", exact=True))
    assert head(at) == "killed"
    at.page.wait_for_selector("#chart-reward .scatterlayer .point")
    assert at.page.evaluate(MARKS, UNKNOWN) == [RESUMED_AT[0], KILLED_AT[1] - 1]
    assert at.page.evaluate(MARKS, "went on: newest") == list(RESUMED_AT)
    # A curve comes with one metric; another is asked for, and stays chosen.
    at.page.get_by_label("Reward: metric").select_option(label="loss")
    at.page.wait_for_function(SHOWN, arg="loss")
    assert at.page.evaluate(MARKS, UNKNOWN) == [RESUMED_AT[0], KILLED_AT[1] - 1]
    at.page.reload()
    at.page.wait_for_function(SHOWN, arg="loss")
    assert at.page.get_by_label("Reward: metric").locator("option:checked").inner_text() == "loss"


@pytest.mark.exactness
def test_two_checkpoints_are_ticked_and_compared(at: Watched, served: Served) -> None:
    at.page.goto(f"{served.url}/runs/killed")
    for step in (200, 160, 180):
        at.page.get_by_label(re.compile(rf"Compare step {step},")).check()
    # The third takes the place of the first.
    assert at.page.locator("input[name=checkpoint]:checked").count() == 2
    at.follow(at.page.get_by_role("button", name="Compare two"))
    at.page.wait_for_selector("#leaves-title")
    assert head(at) == "Difference of two checkpoints"
    assert at.page.locator("dl.facts").inner_text().split()[:3] == ["A", "step", "160"]
    leaves = table(at, "Leaves").inner_text()
    assert "weights" in leaves
    assert "replay_buffer" in leaves


def test_one_of_another_run_is_chosen_with_the_keyboard_and_the_address_can_be_sent(
    browser: Browser, at: Watched, served: Served
) -> None:
    at.page.goto(f"{served.url}/runs/killed")
    at.tab_to("Compare step 180,")
    at.page.keyboard.press("Space")
    at.tab_to("Compare one with another run")
    at.enter()
    assert head(at) == "Compare with another run"
    assert table(at, "Runs").locator("tbody th").all_inner_texts() == [
        "bare", "damaged", "many", "markup", "sessions"
    ]  # fmt: skip
    at.tab_to("Name contains")
    at.page.keyboard.type("man")
    at.enter()
    at.tab_to("many")
    at.enter()
    # Nothing of this run is nearer than its first save; what was ticked there is one of a group that arrows walk along.
    at.tab_to("Step 1,000, checkpoint 1")
    assert at.page.get_by_role("radio", checked=True).count() == 1
    at.page.keyboard.press("ArrowUp")
    assert at.focused() == "input Step 2,000, checkpoint 2"
    at.tab_to("Compare the two")
    at.enter()
    at.page.wait_for_selector("#leaves-title")
    said = at.page.locator("main").inner_text()
    assert "of killed" in said
    assert "of many" in said
    assert "Only A has the component" in said
    assert "Only B has the components" in said
    assert at.violations() == []
    with watched(browser, served.host, size=(390, 844)) as other:
        other.page.goto(served.entry)
        other.page.goto(at.page.url)
        assert other.page.locator("main").inner_text().split() == said.split()
        assert other.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.exactness
def test_a_checkpoint_its_components_and_their_leaves(at: Watched, served: Served) -> None:
    at.page.goto(f"{served.url}/runs/killed")
    at.follow(table(at, "Checkpoints").get_by_role("link", name="180", exact=True))
    assert head(at) == "Step 180"
    at.page.wait_for_selector("#chart-makeup .treemaplayer path, figure .treemaplayer path")
    at.follow(at.page.get_by_role("link", name="training_state"))
    assert head(at) == "training_state"
    assert "weights" in table(at, "Leaves").inner_text()
    at.follow(at.page.get_by_role("link", name="step 180"))
    at.follow(at.page.get_by_role("link", name="Before: step 160"))
    assert head(at) == "Step 160"


@pytest.mark.exactness
def test_checkpoints_are_paged_and_one_can_jump_to_a_step(at: Watched, served: Served) -> None:
    at.page.goto(f"{served.url}/runs/many")
    seen: list[str] = []
    pages = at.page.get_by_role("navigation", name="Pages of checkpoints")
    first = caption(at, "Checkpoints")
    assert f"of {CHECKPOINTS} checkpoints" in first
    seen += at.page.locator("form[data-compare] tbody th").all_inner_texts()
    assert seen[0] == f"{CHECKPOINTS * 1_000:,}"
    while pages.get_by_role("link", name="Next").count():
        at.follow(pages.get_by_role("link", name="Next"))
        seen += at.page.locator("form[data-compare] tbody th").all_inner_texts()
    assert seen == [f"{step * 1_000:,}" for step in range(CHECKPOINTS, 0, -1)]
    at.page.get_by_label("From step").fill("61500")
    at.enter()
    assert at.page.locator("form[data-compare] tbody th").first.inner_text() == "61,000"


@pytest.mark.exactness
def test_sessions_are_paged_found_and_shown_with_their_calls(at: Watched, served: Served) -> None:
    at.page.goto(f"{served.url}/runs/sessions")
    at.follow(table(at, "Checkpoints").get_by_role("link", name="2", exact=True))
    at.follow(at.page.get_by_role("link", name="Sessions of NeMo Gym"))
    assert f"of {SESSIONS:,} sessions" in caption(at, "Sessions")
    at.follow(at.page.get_by_role("navigation", name="Pages of sessions").get_by_role("link", name="Next"))
    assert not caption(at, "Sessions").startswith("1–")
    at.page.get_by_role("searchbox").first.fill("s-09876")
    at.enter()
    at.follow(at.page.get_by_role("link", name="s-09876"))
    assert head(at) == "Session s-09876"
    assert at.page.locator("ol.calls h3 .mono").all_inner_texts() == [
        "seed_session",
        "increment_counter",
        "look",
        "verify",
    ]


@pytest.mark.exactness
def test_verify_works_with_progress_and_says_what_it_found(at: Watched, served: Served) -> None:
    for run, says in (("killed", "Every object is as it was written."), ("damaged", "Something is damaged.")):
        at.page.goto(f"{served.url}/runs/{run}")
        at.follow(at.page.get_by_role("button", name="Verify all checkpoints"))
        at.page.wait_for_selector(".verdict")
        assert at.page.locator(".verdict").inner_text() == says
    assert "manifest.json" in table(at, "Damage").inner_text()


@pytest.mark.exactness
def test_a_plan_of_a_prune_says_what_would_go_and_lets_nobody_carry_it_out(
    at: Watched, served: Served, root: Root
) -> None:
    at.page.goto(f"{served.url}/runs/killed")
    at.page.get_by_label("Newest checkpoints to keep").fill("2")
    at.follow(at.page.get_by_role("button", name="Plan a prune"))
    at.page.wait_for_selector("#plan-title")
    assert "Nothing was deleted." in at.page.locator("main").inner_text()
    assert f"unbroken prune --keep-last 2 {root.killed}" in at.page.locator("main").inner_text()
    assert at.page.get_by_role("button", name="Delete").count() == 0


def test_from_the_list_to_a_comparison_with_the_keyboard_alone(at: Watched) -> None:
    assert at.tab() == "a Skip to the content"
    at.tab_to("killed")
    at.enter()
    at.page.wait_for_selector("#chart-reward .scatterlayer .point")
    at.tab_to("Reward. Arrow keys")
    at.page.keyboard.press("End")
    assert "200" in at.page.locator("#chart-reward .readout").inner_text()
    for step in (200, 180):
        at.tab_to(f"Compare step {step},")
        at.page.keyboard.press("Space")
    at.tab_to("Compare two")
    at.enter()
    at.page.wait_for_selector("#leaves-title")
    assert head(at) == "Difference of two checkpoints"


def test_markup_from_a_run_is_shown_and_not_carried_out(at: Watched, served: Served) -> None:
    for path in ("/runs/markup", "/runs/markup/checkpoints/2"):
        at.page.goto(f"{served.url}{path}")
        at.page.wait_for_load_state()
        assert at.page.title().endswith("Unbroken")
        assert at.page.locator("main img").count() == 0
    assert MARKUP in at.page.locator("main").inner_text()


@pytest.mark.exactness
def test_what_is_not_there_is_told_on_a_page(browser: Browser, served: Served) -> None:
    # The browser itself complains about a 404, so this page is not quiet.
    with watched(browser, served.host, checked=False) as at:
        at.page.goto(served.entry)
        for path in ("/runs/nobody", "/runs/killed/checkpoints/77", "/nothing"):
            at.page.goto(f"{served.url}{path}")
            assert head(at)
            assert "Internal" not in at.page.locator("main").inner_text()
            assert at.violations(schemes=["light"]) == []
        assert at.outside == []


@pytest.mark.exactness
def test_without_scripts_everything_but_the_charts_is_there(browser: Browser, served: Served) -> None:
    with watched(browser, served.host, scripts=False) as at:
        at.page.goto(served.entry)
        at.follow(at.page.get_by_role("link", name="killed", exact=True))
        assert not at.page.locator("[data-theme-switch]").is_visible()
        at.follow(at.page.get_by_role("link", name="Reward as a table"))
        assert at.page.locator("tbody tr").count() == 10
        at.page.go_back()
        at.follow(at.page.get_by_role("button", name="Verify all checkpoints"))
        at.page.wait_for_selector(".verdict")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=[] if name == "run" else pytest.mark.exactness)
        for name, path in PAGES.items()
    ],
)
def test_nobody_is_kept_out_of_a_page(at: Watched, served: Served, path: str) -> None:
    at.page.goto(f"{served.url}{path}")
    at.page.wait_for_load_state()
    assert at.violations() == []


@pytest.mark.exactness
def test_on_a_phone_no_page_is_wider_than_the_screen(browser: Browser, served: Served) -> None:
    with watched(browser, served.host, size=(390, 844)) as at:
        at.page.goto(served.entry)
        wide = {}
        for name, path in PAGES.items():
            at.page.goto(f"{served.url}{path}")
            wide[name] = at.page.evaluate("document.documentElement.scrollWidth")
        assert {name for name, width in wide.items() if width > 390} == set()


def test_another_site_cannot_have_a_run_worked_on(browser: Browser, served: Served, root: Root) -> None:
    with watched(browser, served.host, checked=False) as at:
        at.page.goto(served.entry)
        # A page of another origin, here one of no origin at all, posts a form with the cookie that the browser has.
        at.page.goto("about:blank")
        form = f"<form method=post action='{served.url}/runs/{root.many.name}/verify'><button>Send</button></form>"
        at.page.set_content(form)
        with at.page.expect_navigation() as sent:
            at.page.get_by_role("button").click()
        assert sent.value is not None
        assert sent.value.status == 403
        at.page.goto(f"{served.url}/runs/{root.many.name}")
        assert "Latest work" not in at.page.locator("#upkeep").inner_text()
