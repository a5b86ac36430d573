"""The Python blocks of the README run as they stand, only with fewer steps.

Those that are taken from an example are compared with it instead (`test_many_workers_page`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks, source_of

BLOCKS = [text for kind, text in blocks("README.md") if kind == "python" and source_of(text) is None]


def test_the_readme_shows_code() -> None:
    assert BLOCKS


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run(number: int, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    script = tmp_path / "block.py"
    script.write_text(re.sub(r"\b\d{1,3}_000\b", "600", BLOCKS[number]))
    for _ in range(2):  # the second start finds the finished run
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr


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


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "docs/guide.md", "docs/requirements.md", "docs/scale.md"]
)
def test_links_point_to_files(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []
