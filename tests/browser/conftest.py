"""One root with runs for all tests, a Chromium and a server for each module."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium
from tests.browser.runs import Root, make_root, root_at
from tests.browser.serving import Served, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Runs to look at. Read only, and the same for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, made = base / "browser-runs", base / "browser-runs-made"
    with (base / "browser-runs-lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir()
            make_root(folder)
            made.touch()
    return root_at(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.opened() as browser:
        yield browser


@pytest.fixture(scope="module")
def served(root: Root, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`unbroken ui` over the root, as a process of its own. Asks for the browser: without one it is not needed."""
    with serve(root.path, tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture(scope="module")
def report(root: Root, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `unbroken report` has written a page for each run, named after it."""
    from tests.cli.command import unbroken

    folder = tmp_path_factory.mktemp("reports")
    for run in (root.killed, root.many, root.markup, root.bare, root.damaged, root.sessions):
        answer = unbroken("report", run, "-o", folder / f"{run.name}.html", cwd=folder)
        assert answer.code == 0, answer.err
    return folder
