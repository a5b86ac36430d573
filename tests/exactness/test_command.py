"""The command: what it takes and what it refuses, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactness import __main__ as command
from exactness import matrix
from exactness.records import Row


def test_it_names_the_cells_of_a_pattern_and_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--only", "a2c/*", "--only", "*hopper"]) == 0
    said = capsys.readouterr().out.split("\n")
    assert [name for name in said if name.startswith("A2C/")] == [
        "A2C/two",
        "A2C/gsde-workers",
        "A2C/acrobot",
    ]
    assert "MuJoCo/Hopper" in said


def test_what_is_chosen_is_printed_as_rows_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = Row(
        key="a/one",
        group="a",
        algorithm="PPO",
        environment="One-v0",
        around="",
        claim="exact",
        holds=True,
        steps=96,
    )
    monkeypatch.setattr(command.Bench, "prove", lambda bench, cells: [row for _ in cells])
    assert command.main(["--only", "Contrib/TRPO", "--folder", str(tmp_path)]) == 0
    title, blank, head, line, told = capsys.readouterr().out.rstrip("\n").split("\n")
    assert (title, blank) == ("## A", "")
    assert head.count("|") == line.count("|") == told.count("|")
    assert told.startswith("| PPO | One-v0 |")


def test_a_pattern_that_fits_nothing_is_refused_with_the_next_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--only", "pp0", "--folder", str(tmp_path)])
    assert "no cell is called pp0; --list names them" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(matrix, "missing", lambda cell: list(cell.needs))
    with pytest.raises(SystemExit, match="2"):
        command.main(["--only", "*/parallel", "--folder", str(tmp_path)])
    assert "not installed: pettingzoo, supersuit" in capsys.readouterr().err
