"""Figures say where they come from, each its own, and none comes from a tree that no commit has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from exactness.provenance import Provenance, Uncommitted, here, told


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "src")
    git(tmp_path, "commit", "-q", "-m", "a")
    return tmp_path


def test_a_committed_tree_is_named(tree: Path) -> None:
    asked = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    found = here(["msgspec"], tree)
    assert asked.stdout.startswith(found.commit)
    assert found.versions == {"msgspec": msgspec.__version__}


@pytest.mark.parametrize("changed", ["src/a.py", "src/new.py", "exactness/new.py"])
def test_nothing_is_measured_in_a_tree_with_changes(tree: Path, changed: str) -> None:
    (tree / changed).parent.mkdir(exist_ok=True)
    (tree / changed).write_text("a = 2\n")
    with pytest.raises(Uncommitted):
        here([], tree)


def test_nothing_is_measured_where_no_commit_can_be_named(tmp_path: Path) -> None:
    with pytest.raises(Uncommitted):
        here([], tmp_path)


def test_figures_of_different_origin_are_told_apart() -> None:
    one = Provenance(date="2026-01-02", commit="1a2b3c4", machine="2 cores of X", versions={"torch": "2"})
    other = msgspec.structs.replace(one, machine="8 cores of Y")
    assert told("m", "", {"a": one, "b": one}).splitlines() == [
        "`m`, 2026-01-02 at commit 1a2b3c4: torch 2; 2 cores of X."
    ]
    assert told("m", " --only", {"a": one, "b": other, "c": one}).splitlines() == [
        "`m --only a --only c`, 2026-01-02 at commit 1a2b3c4: torch 2; 2 cores of X.",
        "`m --only b`, 2026-01-02 at commit 1a2b3c4: torch 2; 8 cores of Y.",
    ]
