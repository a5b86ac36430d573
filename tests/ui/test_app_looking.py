"""What is kept of runs from one look to the next: once for all who ask, only as long as it is so, and not too much."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.repo.states import meta, snapshot
from tests.ui.serving import Pages, site_over, words
from unbroken.format.saves import SAVES
from unbroken.inspection.target import open_run
from unbroken.inspection.watched import Watched
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.store.base import ByteStore
from unbroken.ui.app.catalogue import Catalogue, Run
from unbroken.ui.app.kept import Kept
from unbroken.ui.app.looking import RUNS, Looking
from unbroken.ui.app.pages.runs import BELIEVED

PATIENCE = 60.0


def save(root: Path, *steps: int, keep_last: int | None = None) -> None:
    repository = Repository.open(root, "run", create=True)
    with repository.writer() as writer:
        for step in steps:
            writer.write(snapshot(b"%d" % step * 999, step=step), meta(step))
        if keep_last is not None:
            writer.retain(plan_retention(repository.commits(), keep_last=keep_last))


@dataclass
class Slow(Catalogue):
    """Opens no run before it may."""

    may: threading.Event = field(default_factory=threading.Event)

    def open(self, run: Run) -> Repository:
        assert self.may.wait(PATIENCE)
        return super().open(run)


def test_what_was_read_too_late_for_one_look_is_not_what_the_next_one_shows(tmp_path: Path) -> None:
    save(tmp_path, 1)
    catalogue = Slow(str(tmp_path))
    looking = Looking(catalogue, lambda: 0.0)
    runs = catalogue.runs()
    (early,) = looking.glances(runs, seconds=0)
    assert early.is_pending
    assert early.brief is None
    catalogue.may.set()
    assert looking.wait(PATIENCE)
    save(tmp_path, 2)
    (now,) = looking.glances(runs, seconds=PATIENCE)
    assert not now.is_pending
    assert now.brief is not None
    assert now.brief.newest_step == 2
    looking.close()


def test_until_a_run_is_read_anew_its_last_look_is_shown_with_its_time(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with site_over(tmp_path) as site:
        catalogue = Slow(str(tmp_path))
        site.__dict__["catalogue"] = catalogue
        site.clock = lambda: 90.0
        pages = Pages(site)
        catalogue.may.set()
        site.looking.glances(catalogue.runs(), seconds=PATIENCE)
        assert "as of" not in words(pages.get("/"))
        catalogue.may.clear()
        save(tmp_path, 2)
        late = pages.get("/")
        assert "as of 1970-01-01 00:01:30Z 1 1 " in words(late)
        assert 'data-live="1"' in late.text
        catalogue.may.set()
        assert site.looking.wait(PATIENCE)
        assert "as of" not in words(pages.get("/"))


def test_what_many_ask_for_at_once_is_made_once() -> None:
    kept: Kept[int] = Kept(3)
    began, go = threading.Event(), threading.Event()
    asking = threading.Barrier(10)
    made: list[int] = []

    def make() -> int:
        made.append(1)
        began.set()
        assert go.wait(PATIENCE)
        return 7

    def ask() -> int:
        asking.wait(PATIENCE)
        return kept.get("run", make)

    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(kept.get, "run", make)
        assert began.wait(PATIENCE)
        others = [pool.submit(ask) for _ in range(9)]
        asking.wait(PATIENCE)
        go.set()
        assert [one.result(PATIENCE) for one in (first, *others)] == [7] * 10
    assert made == [1]


def test_what_cannot_be_made_is_told_to_all_and_tried_again() -> None:
    kept: Kept[int] = Kept(3)

    def fail() -> int:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        kept.get("run", fail)
    assert kept.get("run", lambda: 7) == 7


def test_only_so_much_is_kept_and_of_each_the_newest_version() -> None:
    kept: Kept[int] = Kept(3)
    for version in range(9):
        assert kept.get("run", partial(int, version), version=version) == version
    assert len(kept) == 1
    for key in range(9):
        kept.get(key, partial(int, key))
    assert len(kept) == 3
    assert kept.get("run", lambda: -1, version=8) == -1


class Counting(Watched):
    """Counts what is read."""

    def __init__(self, inner: ByteStore, told: Callable[[str], None]) -> None:
        super().__init__(inner, lambda _: None)
        self._reads = told

    def get(self, key: str) -> bytes:
        self._reads(key)
        return super().get(key)


def test_of_more_runs_than_are_kept_whole_a_list_reads_none_again_that_is_as_it_was(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "run").rename(tmp_path / "run-00")
    for number in range(1, RUNS + 6):
        shutil.copytree(tmp_path / "run-00", tmp_path / f"run-{number:02d}")
    read: list[str] = []

    @dataclass
    class Counted(Catalogue):
        def open(self, run: Run) -> Repository:
            return Repository.over(Counting(open_run(run.where).store, read.append), run.name)

    catalogue = Counted(str(tmp_path))
    looking = Looking(catalogue, lambda: 0.0)
    for _ in range(2):
        read.clear()
        found = looking.glances(catalogue.runs(), seconds=PATIENCE)
        assert [one.brief.newest_step for one in found if one.brief] == [1] * (RUNS + 6)
    assert [key for key in read if key.startswith(SAVES)] == []
    looking.close()


def test_a_filter_asks_the_runs_that_it_shows_and_all_others_only_now_and_then(tmp_path: Path) -> None:
    for number in range(6):
        save(tmp_path / f"{number}", *([1] if number % 2 else []))
    opened: list[str] = []

    @dataclass
    class Counted(Catalogue):
        def open(self, run: Run) -> Repository:
            opened.append(run.name)
            return super().open(run)

    now = 100.0
    with site_over(tmp_path) as site:
        site.__dict__["catalogue"] = Counted(str(tmp_path))
        site.clock = lambda: now
        pages = Pages(site)

        def asked(query: str) -> tuple[list[str], list[str]]:
            """Return the runs that a list shows, and those that were looked at for it."""
            opened.clear()
            shown = re.findall(r'data-key="(\d)~1run"', pages.get(f"/?{query}").text)
            return shown, sorted({name.partition("/")[0] for name in opened})

        assert asked("state=stopped") == (["1", "3", "5"], ["0", "1", "2", "3", "4", "5"])
        save(tmp_path / "3", 2)
        save(tmp_path / "4", 7)
        # What is shown of a run is as it is now, and which runs are shown is as it was a moment ago.
        assert asked("state=stopped") == (["1", "3", "5"], ["1", "3", "5"])
        assert "3/run stopped 2 2 " in words(pages.get("/?state=stopped"))
        assert asked("state=stopped&q=3") == (["3"], ["3"])
        now += BELIEVED
        assert asked("state=stopped") == (["1", "3", "4", "5"], ["0", "1", "2", "3", "4", "5"])
        assert asked("order=step")[0][0] == "4"


def test_what_a_run_takes_is_counted_after_each_save_and_each_deletion(tmp_path: Path) -> None:
    catalogue = Catalogue(str(tmp_path))
    looking = Looking(catalogue, lambda: 0.0)
    sizes: list[int] = []
    for steps, keep_last in (((1, 2), None), ((3,), None), ((4,), 1)):
        save(tmp_path, *steps, keep_last=keep_last)
        (run,) = catalogue.runs()
        found = looking.look(run, catalogue.open(run)).on_disk
        there = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
        assert found == there
        sizes.append(there)
    assert len(set(sizes)) == 3
    looking.close()
