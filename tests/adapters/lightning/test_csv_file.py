"""The file of Lightning's `CSVLogger`: read as it grows, and put back whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from unbroken.adapters.lightning.csv_file import CsvFile
from unbroken.errors import RestoreFailed


def file_in(folder: Path) -> tuple[CsvFile, Any]:
    folder.mkdir()
    writer = ExperimentWriter(str(folder))
    return CsvFile(writer), writer


def test_read_as_it_grows_it_is_the_file_under_any_header_and_says_which_values_were_logged_when(
    tmp_path: Path,
) -> None:
    digests: list[str] = []
    for name, often, step, value in (
        ("one", True, 2, 1.0),
        ("other", False, 2, 7.0),
        ("later", False, 3, 1.0),
    ):
        file, writer = file_in(tmp_path / name)
        writer.log_metrics({"loss": value}, 1)
        if often:
            file.read()
        writer.log_metrics({"loss": value, "late": value}, step)  # under another header
        file.read()
        assert file.text == (tmp_path / name / "metrics.csv").read_bytes()
        assert set(file.columns) == {"loss", "late", "step"}
        digests.append(file.digest())
    assert digests[0] == digests[1] != digests[2]


def test_a_disk_that_is_full_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    file, writer = file_in(tmp_path / "version_0")
    writer.log_metrics({"loss": 1.0}, 1)
    file.read()
    before = file.text
    (tmp_path / "version_0" / f"metrics.csv.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(RestoreFailed, match=r"metrics.csv cannot be written: No space left on device"):
        file.put_back(b"loss,step\r\n2.0,7\r\n")
    assert [path.name for path in (tmp_path / "version_0").iterdir()] == ["metrics.csv"]
    assert (tmp_path / "version_0" / "metrics.csv").read_bytes() == before


def test_what_is_logged_after_a_restore_comes_after_what_it_put_back(tmp_path: Path) -> None:
    file, writer = file_in(tmp_path / "version_0")
    writer.log_metrics({"loss": 9.0}, 9)
    file.read()
    file.put_back(b"loss,step\r\n1.0,1\r\n")
    writer.log_metrics({"loss": 2.0}, 2)
    file.read()
    assert file.text == b"loss,step\r\n1.0,1\r\n2.0,2\r\n"
