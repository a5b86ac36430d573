"""A log file that grows: only its new part is read, and one that was begun anew is read whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from unbroken.capture.growing import TAIL, GrowingFile


class Lines(GrowingFile):
    def __init__(self) -> None:
        self.read_lines: list[str] = []
        super().__init__()

    def _said(self, lines: list[str]) -> Iterable[str]:
        self.read_lines += lines
        return lines


def rows(first: int, until: int) -> str:
    return "".join(f"{n},{n * n:09}\n" for n in range(first, until))


@pytest.mark.parametrize("known", [1, 5, TAIL])
def test_only_the_new_part_is_read(tmp_path: Path, known: int) -> None:
    path, file = tmp_path / "log.csv", Lines()
    path.write_text("step,loss\n" + rows(0, known))
    file.read_from(str(path))
    with path.open("a") as more:
        more.write(rows(known, known + 3))
    file.read_lines.clear()
    file.read_from(str(path))
    assert file.text == path.read_bytes()
    assert "".join(f"{line}\n" for line in file.read_lines) == rows(known, known + 3)


@pytest.mark.parametrize("until", [6, 10, 12, 40], ids=["shorter", "as long", "longer", "much longer"])
def test_a_file_that_was_deleted_and_begun_anew_is_read_whole(tmp_path: Path, until: int) -> None:
    path, file, fresh = tmp_path / "log.csv", Lines(), Lines()
    path.write_text("step,loss\n" + rows(0, 5))
    file.read_from(str(path))
    path.unlink()
    path.write_text("step,loss\n" + rows(5, until))
    file.read_from(str(path))
    fresh.read_from(str(path))
    assert file.text == path.read_bytes()
    assert file.digest() == fresh.digest()
