"""Two demos in one checkout would write over each other's runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the demo's extra is not installed")

from demo.__main__ import alone
from unbroken.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent


def test_a_second_demo_is_told_of_the_first_and_comes_after_it(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(ConfigError, match="Another demo"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


def test_a_demo_beside_another_ends_with_one_sentence_and_leaves_its_files() -> None:
    (ROOT / "demo/out").mkdir(exist_ok=True)
    with alone(ROOT / "demo"):
        done = subprocess.run(
            [sys.executable, "-m", "demo"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Another demo is running in this checkout.")
    assert done.stdout == "bit-exact: no\n"
    assert (ROOT / "demo/out").is_dir()
