"""The Python blocks of the README run as they stand, only with fewer steps.

Those that are taken from an example are compared with it instead (tests/docs/test_blocks.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT, Stage, every_block

BLOCKS = [block for block in every_block("README.md") if block.kind == "python" and block.source is None]


def test_the_readme_shows_code() -> None:
    assert BLOCKS


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run(number: int, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    block = BLOCKS[number]
    stage = Stage(
        tmp_path / "page", replaced=dict.fromkeys(re.findall(r"\b\d{1,3}_000\b", block.text), "600")
    )
    for _ in range(2):  # the second start finds the finished run
        stage.play(block)


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_the_commands_it_names_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_the_versions_it_names_are_those_that_are_required() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    project = (ROOT / "pyproject.toml").read_text()
    for package, name in {
        "stable-baselines3": "Stable-Baselines3",
        "torch": "PyTorch",
        "gymnasium": "Gymnasium",
    }.items():
        found = re.search(rf'"{package}>=([\d.]+)', project)
        assert found is not None
        assert f"{name} {found[1]} or newer" in text
    assert 'requires-python = ">=3.10"' in project
    assert "Python 3.10 or newer" in text
