"""The core on every Python that the project supports, without any framework: install the wheel, save, load.

A Python that is not there is skipped by name; under CI it is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SMOKE = Path(__file__).parent / "smoke.py"
VERSIONS = ("3.10", "3.12", "3.13")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def interpreter(version: str) -> Path | None:
    """Return a CPython of this version: on the path, or one that pyenv holds but has not switched on."""
    found = shutil.which(f"python{version}")
    if found is not None:
        asked = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(root.glob(f"versions/{version}.*/bin/python")):
        return path
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.parametrize("version", VERSIONS)
def test_the_core_saves_and_loads(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        message = f"CPython {version} is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    run(python, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    inside = tmp_path / "venv" / "bin" / "python"
    run(inside, "-m", "pip", "install", "-qq", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    assert run(inside, SMOKE, cwd=tmp_path).strip() == "equal"
    assert "Usage" in run(tmp_path / "venv" / "bin" / "unbroken", "--help", cwd=tmp_path)
