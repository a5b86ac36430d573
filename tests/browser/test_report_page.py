"""The file that `unbroken report` writes, opened in a real Chromium as a person opens it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.browser.chromium import Watched, watched
from tests.browser.runs import KILLED_AT, MARKUP, RESUMED_AT
from tests.cli.command import unbroken
from unbroken.ui.charts.curves import ENDS, UNKNOWN

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
MARKS = (
    """name => [...document.querySelector('#chart-reward .plot').data.find(trace => trace.name === name).x]"""
)
"""Where the marks of a name lie over the global step, as Plotly has drawn them."""
DRAWN = """name => document.querySelector('#chart-reward .plot').data.some(trace => trace.name === name && trace.x.length)"""


REST = [("bare", "holds no checkpoint"), ("sessions", "gym"), ("many", "120,000"), ("markup", "approximate")]


def open_report(at: Watched, report: Path, name: str) -> None:
    at.page.goto((report / f"{name}.html").as_uri())
    at.page.wait_for_function("document.readyState === 'complete'")


def rows(at: Watched, table: str) -> list[list[str]]:
    read = "table => [...document.querySelectorAll(table + ' tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    return cast("list[list[str]]", at.page.evaluate(read, table))


def test_every_kill_and_every_resume_is_marked_at_its_step(browser: Browser, report: Path) -> None:
    with watched(browser) as at:
        open_report(at, report, "killed")
        assert at.page.title() == "killed: a report"
        assert at.page.locator("#chart-reward .scatterlayer .point").count() > 10
        # Of the first nobody knows how far it came after its last save; the second was killed in a save, or after it.
        assert at.page.evaluate(MARKS, UNKNOWN) == [RESUMED_AT[0], KILLED_AT[1] - 1]
        assert at.page.evaluate(MARKS, "went on: newest") == list(RESUMED_AT)
        told = rows(at, "#table-restarts")
        assert [(row[1], row[4], row[5]) for row in told if row[1] == "start"] == [
            ("start", "0", ""),
            ("start", "60", "not known"),
            ("start", "100", "at least 20"),
        ]
        assert [row[0] for row in rows(at, "#table-checkpoints")] == [
            str(step) for step in range(200, 60, -20)
        ]


@pytest.mark.exactness
def test_what_the_charts_show_is_reached_with_the_keyboard_alone(browser: Browser, report: Path) -> None:
    with watched(browser) as at:
        open_report(at, report, "killed")
        assert at.tab() == "a Skip to the content"
        at.tab_to("Theme: system")
        for theme in ("light", "dark"):
            at.page.keyboard.press("Enter")
            assert at.page.locator("html").get_attribute("data-theme") == theme
        at.tab_to("Reward. Arrow keys")
        at.page.keyboard.press("End")
        assert re.search(r"200: 99\.", at.page.locator("#chart-reward .readout").inner_text())
        at.page.keyboard.press("ArrowLeft")
        assert "180" in at.page.locator("#chart-reward .readout").inner_text()
        at.tab_to("Reward as a table")
        assert not at.page.locator("#table-reward").is_visible()
        at.page.keyboard.press("Enter")
        assert at.page.locator("#table-reward").is_visible()
        assert ["200", "99.08"] in [[row[0], row[4][:5]] for row in rows(at, "#table-reward")]


@pytest.mark.exactness
def test_another_metric_is_chosen_with_the_keyboard(browser: Browser, report: Path) -> None:
    with watched(browser) as at:
        open_report(at, report, "killed")
        shown = "document.querySelector('#chart-reward .plot').layout.yaxis.title.text"
        assert at.page.evaluate(shown) == "reward"
        at.page.locator("#choice-reward").focus()
        at.page.keyboard.type("loss")
        assert at.page.evaluate(shown) == "loss"


def test_dark_where_the_system_is_dark(browser: Browser, report: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    grounds: list[int] = []
    for scheme in ("light", "dark"):
        with watched(browser, scheme=scheme) as at:
            open_report(at, report, "killed")
            grounds.append(sum(int(part) for part in re.findall(r"\d+", at.page.evaluate(ground))[:3]))
            font = at.page.evaluate("document.querySelector('#chart-reward .plot').layout.font.color")
            assert (int(font[1:3], 16) > 128) == (scheme == "dark")
    assert grounds[0] > 600
    assert grounds[1] < 150


def test_it_is_printed_on_light_paper_without_what_only_a_screen_can_do(
    browser: Browser, report: Path
) -> None:
    with watched(browser, scheme="dark") as at:
        open_report(at, report, "killed")
        at.page.emulate_media(media="print", color_scheme="dark")
        for button in ("[data-theme-switch]", "summary", ".controls"):
            assert at.page.locator(button).filter(visible=True).count() == 0, "paper has nothing to be opened"
        assert at.page.locator("figcaption").first.is_visible()
        widths = at.page.evaluate(
            "[...document.querySelectorAll('.plot svg.main-svg')].map(one => one.clientWidth)"
        )
        assert widths
        assert max(widths) <= 720, "wider than a page of A4 between its margins"
        printed = at.page.pdf(format="A4")
        assert printed.startswith(b"%PDF")
        assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12


@pytest.mark.exactness
def test_on_a_phone_nothing_but_tables_is_wider_than_the_screen(browser: Browser, report: Path) -> None:
    with watched(browser, size=(390, 844)) as at:
        open_report(at, report, "killed")
        assert at.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.exactness
def test_markup_from_a_run_is_shown_and_not_carried_out(browser: Browser, report: Path) -> None:
    with watched(browser) as at:
        open_report(at, report, "markup")
        assert at.page.title() == "markup: a report"
        assert at.page.locator("img").count() == 0
        assert MARKUP in at.page.locator("#table-checkpoints").inner_text()
        at.page.locator("#choice-reward").select_option(label=MARKUP)
        assert at.page.title() == "markup: a report"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("damaged", "is missing"),
        *REST,
    ],
)
@pytest.mark.exactness
def test_a_run_that_is_unlike_others_has_a_page_that_says_so(
    browser: Browser, report: Path, name: str, says: str
) -> None:
    with watched(browser) as at:
        open_report(at, report, name)
        assert says in at.page.locator("body").inner_text()
        assert "NaN" not in at.page.locator("dl.facts").inner_text()


@pytest.mark.exactness
def test_without_scripts_the_tables_are_there(browser: Browser, report: Path) -> None:
    with watched(browser, scripts=False) as at:
        open_report(at, report, "killed")
        assert not at.page.locator("[data-theme-switch]").is_visible()
        assert len(rows(at, "#table-reward")) == 10
        assert len(rows(at, "#table-restarts")) == 4


@pytest.mark.parametrize(
    "name", ["killed", *(pytest.param(name, marks=pytest.mark.exactness) for name, _ in REST)]
)
def test_nobody_is_kept_out_of_a_report(browser: Browser, report: Path, name: str) -> None:
    with watched(browser) as at:
        open_report(at, report, name)
        at.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert at.violations() == []


@pytest.mark.exactness
def test_a_killed_training_of_sb3_has_its_reward_its_losses_and_its_kill_in_the_report(
    browser: Browser, tmp_path: Path
) -> None:
    script = Path(__file__).parents[1] / "packaging" / "train.py"
    for words, ends in ((["200"], -signal.SIGKILL), ([], 0)):
        ended = subprocess.run(
            [sys.executable, script, "runs", *words], cwd=tmp_path, check=False, timeout=100
        )
        assert ended.returncode == ends
    answer = unbroken("report", "runs", "-o", "sb3.html", cwd=tmp_path)
    assert answer.code == 0, answer.err
    with watched(browser) as at:
        open_report(at, tmp_path, "sb3")
        assert at.page.locator("#choice-reward option:checked").inner_text() == "rollout/ep_rew_mean"
        assert at.page.locator("#chart-loss .scatterlayer .point").count() > 1
        marks = [name for name in (ENDS, UNKNOWN) if at.page.evaluate(DRAWN, name)]
        assert len(marks) == 1
        at.page.screenshot(path=tmp_path / "sb3.png", full_page=True)
        assert at.violations() == []
