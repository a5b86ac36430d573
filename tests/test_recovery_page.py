"""docs/recovery.md says what is so: its classes, tiers, commands and options are those of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import unbroken
from unbroken.engine.faults import FaultKind
from unbroken.engine.recovery import Tier

PAGE = (Path(__file__).parents[1] / "docs/recovery.md").read_text()


def first_cells(heading: str) -> list[str]:
    """Return the first column of the table below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_the_classes_of_faults_are_these() -> None:
    assert first_cells("How the last process ended") == [kind.value for kind in FaultKind][1:]


def test_the_tiers_are_these() -> None:
    assert first_cells("Four tiers") == [tier.value for tier in Tier]


def test_the_options_of_the_doctor_are_there(tmp_path: Path) -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    told = unbroken("doctor", "--help", cwd=tmp_path).out
    assert len(named) > 4
    assert [option for option in sorted(named) if option not in told] == []


@pytest.mark.parametrize("command", ["doctor", "history"])
def test_the_commands_are_there(command: str, tmp_path: Path) -> None:
    assert f"unbroken {command} RUN" in PAGE
    assert unbroken(command, "--help", cwd=tmp_path).code == 0
