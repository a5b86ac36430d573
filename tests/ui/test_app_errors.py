"""What a page and a program are told of an error: a sentence with the next step, and a status; of a bug the traceback, too."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repo.states import meta, snapshot
from tests.ui.serving import Pages, site_over, words
from unbroken.errors import ConfigError, CorruptObject, InternalError, RunBusy, StoreUnavailable
from unbroken.repo.repository import Repository
from unbroken.ui.app.bugs import HINT
from unbroken.ui.app.catalogue import Catalogue, Run


@dataclass
class Failing(Catalogue):
    """Finds every run, and cannot open the one that is called `bad`."""

    error: Exception | None = None

    def open(self, run: Run) -> Repository:
        if run.name == "bad" and self.error is not None:
            raise self.error
        return super().open(run)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two runs. Read only."""
    folder = tmp_path_factory.mktemp("root")
    with Repository.open(folder, "good", create=True).writer() as writer:
        writer.write(snapshot(step=5), meta(5))
    shutil.copytree(folder / "good", folder / "bad")
    return folder


ERRORS = {
    "the store": (StoreUnavailable("It does not answer."), 503, "It does not answer. Try again"),
    "the disk": (OSError(errno.EIO, "Input/output error"), 500, "Input/output error."),
    "damage": (CorruptObject("It is torn."), 500, "It is torn."),
    "another process": (RunBusy("It is in use."), 409, "It is in use."),
    "a setting": (ConfigError("It is none.", hint="Look again."), 400, "It is none. Look again."),
    "a bug that says so": (InternalError("It cannot be."), 500, f"It cannot be. {HINT}"),
    "a bug": (ZeroDivisionError("x"), 500, f"A bug in Unbroken: ZeroDivisionError: x. {HINT}"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_told_with_its_status_and_hides_no_other_run(
    root: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    error, status, says = ERRORS[name]
    with site_over(root) as site:
        site.__dict__["catalogue"] = Failing(str(root), error=error)
        pages = Pages(site)
        answer = pages.get("/runs/bad")
        assert answer.status_code == status
        assert says in words(answer)
        # Of another bug the server writes the traceback, since it is raised through the application.
        logged = [record for record in caplog.records if record.name == "unbroken.ui"]
        assert len(logged) == (name == "a bug that says so")
        caplog.clear()
        site.looking.glances(site.catalogue.runs(), seconds=60)
        listed = pages.get("/")
        assert listed.status_code == 200
        assert "good crashed 5" in words(listed).replace("stopped", "crashed")
        assert says in words(listed)
        assert f"{says}." not in words(listed)
        assert ("in open\n    raise self.error\n" in caplog.text) == name.startswith("a bug")
