"""`unbroken report`: one file that shows a run, and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.browser.runs import MARKUP, make_bare, make_damaged, make_markup
from tests.cli.command import Answer, unbroken
from tests.cli.test_doctor import begun
from tests.engine.training import Training, engine_of, train
from tests.repo.states import meta, snapshot
from unbroken.cli import destination
from unbroken.errors import ConfigError
from unbroken.inspection.target import Target
from unbroken.repo.repository import Repository
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.ui.libraries import plotly_js, templates
from unbroken.ui.report.page import report


class Page(HTMLParser):
    """What a browser would see: text, scripts that it would run, and every address that it would go to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._script: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        self.addresses += [
            given[name] or "" for name in ("src", "href", "srcset", "action", "data") if name in given
        ]
        if tag == "script":
            self._script = given.get("type") or "javascript"
            if self._script == "javascript":
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script == "javascript":
            self.scripts[-1] += data
        elif self._script is None:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def policy(self) -> str:
        return next(
            given["content"] or ""
            for _, given in self.elements
            if given.get("http-equiv") == "Content-Security-Policy"
        )


def killed_and_resumed(root: Path) -> None:
    begun(root)
    training = Training()
    with engine_of(training, root) as engine:
        start = engine.resume().step
        train(engine, training, start=start, until=start + 15)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a run that was killed in a save and resumed. Read only."""
    root = tmp_path_factory.mktemp("report") / "runs"
    killed_and_resumed(root)
    return root


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("out")
    assert unbroken("report", run, cwd=folder).code == 0
    return Page((folder / "run-report.html").read_text())


def made(run: Path, folder: Path) -> tuple[Answer, Page]:
    answer = unbroken("report", run, "-o", folder / "page.html", cwd=folder)
    return answer, Page((folder / "page.html").read_text())


def test_the_file_shows_the_interruption_with_its_class_tier_loss_and_time(page: Page) -> None:
    assert "1 time the process before had not closed the run" in page.text
    assert re.search(r"start killed or crashed newest 30 at least 7 \d", page.text)
    assert "first start" in page.text


def test_the_file_asks_nobody_for_anything_and_its_policy_keeps_it_so(page: Page) -> None:
    assert {address for address in page.addresses if not address.startswith(("#", "data:"))} == set()
    policy = page.policy()
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts]
    assert len(digests) == 3
    assert all(f"'sha256-{digest}'" in policy for digest in digests)


def test_every_chart_has_its_data_as_a_table_and_every_control_a_label(page: Page) -> None:
    charts = [given["data-chart"] for tag, given in page.elements if tag == "figure"]
    ids = {given["id"] for _, given in page.elements if "id" in given}
    assert {"cost", "sizes", "makeup"} <= set(charts)
    assert {f"table-{chart}" for chart in charts} <= ids
    labelled = {given["for"] for tag, given in page.elements if tag == "label"}
    assert {given.get("id") for tag, given in page.elements if tag == "select"} <= labelled


def test_what_a_run_says_is_text_and_never_markup(tmp_path: Path) -> None:
    make_markup(tmp_path / "markup")
    answer, page = made(tmp_path / "markup", tmp_path)
    assert answer.code == 0
    assert not [given for tag, given in page.elements if tag == "img" or "onerror" in given]
    assert len(page.scripts) == 3
    assert MARKUP in page.text


def test_a_run_without_a_checkpoint_gives_a_page_that_says_so(tmp_path: Path) -> None:
    make_bare(tmp_path / "bare")
    answer, page = made(tmp_path / "bare", tmp_path)
    assert answer.code == 0
    assert "The run holds no checkpoint." in page.text
    assert "Nothing was saved yet" in page.text


def test_damaged_checkpoints_are_named_at_the_top_and_the_whole_one_is_shown_from_inside(
    tmp_path: Path,
) -> None:
    make_damaged(tmp_path / "damaged")
    answer, page = made(tmp_path / "damaged", tmp_path)
    assert answer.code == 0
    assert "The checkpoint of step 30 cannot be used." in page.text
    assert "The checkpoint of step 10 as a table" in page.text


def test_the_checkpoint_that_is_named_is_shown_from_inside_even_if_it_is_damaged(tmp_path: Path) -> None:
    make_damaged(tmp_path / "damaged")
    _, page = made(Path(f"{tmp_path}/damaged@20"), tmp_path)
    assert "The checkpoint of step 20 cannot be read" in page.text


def test_a_run_that_lies_in_no_directory_is_reported_as_well(run: Path) -> None:
    store, there = MemoryStore(), LocalStore(run / "run")
    for key in there.list():
        store.put(key, there.get(key))
    target = Target(Repository.over(store, "run"), "s3://bucket/run")
    assert "s3://bucket/run" in Page(report(target, now=0.0)).text


def test_a_file_that_exists_is_left_alone_unless_it_is_forced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "run-report.html").write_text("mine")
    refused = unbroken("report", run, cwd=tmp_path)
    assert (refused.code, (tmp_path / "run-report.html").read_text()) == (2, "mine")
    assert "--force" in refused.err
    forced = unbroken("report", run, "--force", "--json", cwd=tmp_path)
    assert forced.json["bytes"] == (tmp_path / "run-report.html").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["run-report.html"]


def test_a_place_that_cannot_be_written_gets_one_sentence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, says in (
        (tmp_path / "no" / "page.html", f"There is no directory {tmp_path / 'no'}."),
        (tmp_path / "file" / "page.html", f"{tmp_path / 'file'} is a file, not a directory."),
        (tmp_path, f"{tmp_path} is a directory."),
    ):
        answer = unbroken("report", run, "-o", place, cwd=tmp_path)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert says in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_full_is_told_with_the_file_and_leaves_what_was_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "page.html").write_text("mine")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As a full disk does it: a part is written, the rest is refused.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"page\.html"):
            destination.put(tmp_path / "page.html", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "page.html").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_name_may_be_as_long_as_names_may_be(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 250}.html"
    destination.check(path, force=False)
    destination.put(path, b"page")
    assert path.read_bytes() == b"page"


def test_a_pipe_is_written_into_and_stays_one(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (
        (tmp_path / "read").open("wb") as read,
        subprocess.Popen(["cat", tmp_path / "pipe"], stdout=read) as reader,
    ):
        answer = unbroken("report", run, "-o", tmp_path / "pipe", cwd=tmp_path)
        assert reader.wait(timeout=60) == 0
    assert (tmp_path / "read").read_bytes().rstrip().endswith(b"</html>")
    assert answer.code == 0
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_that_leads_nowhere_is_something_that_exists_and_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "page.html"
    link.symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(ConfigError, match="exists"):
        destination.check(link, force=False)
    destination.check(link, force=True)
    destination.put(link, b"page")
    assert link.is_symlink()
    assert (tmp_path / "elsewhere.html").read_bytes() == b"page"


def test_a_dash_is_the_standard_output(run: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "unbroken", "report", run, "-o", "-"],
        cwd=tmp_path, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.startswith(b"<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("library", ["plotly.offline", "jinja2"])
def test_a_library_that_is_missing_is_named_with_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    plotly_js.cache_clear()
    templates.cache_clear()
    monkeypatch.setitem(sys.modules, library, None)
    answer = unbroken("report", run, cwd=tmp_path)
    assert answer.code == 2
    assert "pip install plotly jinja2" in answer.err
    assert list(tmp_path.iterdir()) == []


class Counting(MemoryStore):
    """Counts how often each object was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()

    def get(self, key: str) -> bytes:
        self.read[key] += 1
        return super().get(key)

    def size(self, key: str) -> int:
        return len(super().get(key))


def test_no_record_of_a_checkpoint_is_read_twice() -> None:
    store = Counting()
    repository = Repository.over(store, "run", create=True)
    with repository.writer() as writer:
        for step in (10, 20, 30):
            writer.write(snapshot(b"%d" % step * 999, step=step), meta(step))
    store.read.clear()
    assert "step 30" in report(Target(repository, "run"), now=1_790_000_000.0)
    there = [key for key in store.list() if key.startswith(("commits/", "steps/"))]
    assert len(there) > 3
    assert [store.read[key] for key in there] == [1] * len(there)
