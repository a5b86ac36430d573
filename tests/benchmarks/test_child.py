"""A contender that fails, returns something else or ends its process is shown, and the others go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from benchmarks.child import Order, main
from benchmarks.peers import Peer
from benchmarks.plan import CONTENDERS
from benchmarks.records import QUICK, Job, Row, SaveJob, SaveRow

JOBS: list[Job] = [SaveJob("c", "Broken"), SaveJob("c", "TorchSave")]


class Broken(Peer):
    name: ClassVar[str] = "broken"

    def write(self, folder: Path) -> None:
        raise OSError("no space")

    def read(self, folder: Path) -> None:
        raise AssertionError


class Forgetful(Broken):
    """Says that all is well and brings nothing back."""

    def write(self, folder: Path) -> None:
        (folder / "file").write_bytes(b"1")

    def read(self, folder: Path) -> None:
        pass


@pytest.fixture(params=[Broken, Forgetful])
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Peer]:
    monkeypatch.setitem(CONTENDERS, "Broken", request.param)
    found: type[Peer] = request.param
    return found


def test_a_row_that_went_wrong_is_shown_and_the_next_one_follows(wrong: type[Peer], tmp_path: Path) -> None:
    order = Order(jobs=JOBS, sizes=QUICK, frames="", folder=str(tmp_path / "measured"))
    (tmp_path / "order").write_bytes(msgspec.json.encode(order))
    main(str(tmp_path / "order"), str(tmp_path / "results"))
    lines = (tmp_path / "results").read_bytes().splitlines()
    first, second = (msgspec.json.decode(line, type=Row) for line in lines)
    assert isinstance(first, SaveRow) and isinstance(second, SaveRow)
    assert first.contender == "broken"
    assert not first.verified
    assert first.failure == ("OSError: no space" if wrong is Broken else "")
    assert second.verified
    assert sorted(os.listdir(tmp_path)) == ["order", "results"]
