"""The core on every Python that the project supports, without any framework: installed from the wheel, saving,
loading, and going on with what another Python has saved.

Each Python has an environment with other versions of NumPy and Gymnasium, so that every pair differs in
something. PyTorch has a build for one of them only, and is in none. A Python that is not there is skipped by name;
under CI it is an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SMOKE = Path(__file__).parent / "smoke.py"
TRAVEL = Path(__file__).parent / "travel.py"
READING = Path(__file__).parent / "reading.py"
PACKAGES = {
    "3.10": ("numpy==1.26.4", "gymnasium==1.2.2"),
    "3.11": ("numpy==2.4.6", "gymnasium==1.4.0"),
    "3.12": ("numpy==1.26.4", "gymnasium==1.4.0"),
    "3.13": ("numpy==2.4.6", "gymnasium==1.2.2"),
}
PAIRS = [(wrote, reads) for wrote in PACKAGES for reads in PACKAGES]
KILLED_AT, SAVED_AT = 35, 20

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, expect: int = 0) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == expect, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def interpreter(version: str) -> Path:
    """Return a CPython of this version: on the path, or one that pyenv holds but has not switched on."""
    found = shutil.which(f"python{version}")
    if found is not None:
        asked = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(root.glob(f"versions/{version}.*/bin/python")):
        return path
    message = f"CPython {version} is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes the environment of a version, once, and says where its programs lie."""
    folder = tmp_path_factory.mktemp("environments")
    # The versions that this test is about are its own, and not those that all others run with.
    own = {part.partition("==")[0] for packages in PACKAGES.values() for part in packages}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(line for line in lines if line.partition("==")[0] not in own))

    @cache
    def made(version: str) -> Path:
        programs = folder / version / "bin"
        run(interpreter(version), "-m", "venv", folder / version, cwd=folder)
        packages = (wheel, *PACKAGES[version])
        run(programs / "python", "-m", "pip", "install", "-qq", "-c", constraints, *packages, cwd=folder)
        return programs

    return made


@pytest.fixture(scope="module")
def undisturbed(
    environment: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    @cache
    def trained(version: str) -> dict[str, Any]:
        return travel(environment(version), tmp_path_factory.mktemp("whole"))

    return trained


@pytest.fixture(scope="module")
def killed(
    environment: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    @cache
    def trained(version: str) -> Path:
        folder = tmp_path_factory.mktemp("cut")
        run(environment(version) / "python", TRAVEL, "runs", str(KILLED_AT), cwd=folder, expect=-9)
        return folder

    return trained


def travel(programs: Path, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run(programs / "python", TRAVEL, "runs", cwd=folder))
    return told


@pytest.mark.parametrize("version", PACKAGES)
def test_the_core_saves_and_loads(version: str, environment: Callable[[str], Path], tmp_path: Path) -> None:
    programs = environment(version)
    assert run(programs / "python", SMOKE, cwd=tmp_path).strip() == "equal"
    assert "Usage" in run(programs / "unbroken", "--help", cwd=tmp_path)


@pytest.mark.parametrize(("wrote", "reads"), PAIRS)
def test_what_one_python_has_saved_another_goes_on_with(
    wrote: str,
    reads: str,
    environment: Callable[[str], Path],
    undisturbed: Callable[[str], dict[str, Any]],
    killed: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    root = tmp_path / "moved"
    shutil.copytree(killed(wrote), root)
    resumed = travel(environment(reads), root)
    assert resumed["from"] == SAVED_AT
    assert resumed["digest"] == undisturbed(wrote)["digest"] == undisturbed(reads)["digest"]
    # It is equal here; nobody can promise it of any computation, and the start says so by name.
    assert any("python is" in warning for warning in resumed["warnings"]) == (wrote != reads)
    assert (resumed["fidelity"] == ["approximate"]) == (wrote != reads)
    # Each Python compiles a schedule to other bytecode: that is not a change that somebody has made.
    assert [line for line in resumed["changes"] if line.startswith("learner/")] == []


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of SB3 whose learning rate and range of clipping are functions of the script."""
    ppo = pytest.importorskip("stable_baselines3").PPO
    checkpoints = pytest.importorskip("unbroken.sb3").CheckpointCallback
    folder = tmp_path_factory.mktemp("scheduled")
    slope = 2e-4
    model = ppo(
        "MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu",
        learning_rate=lambda left: slope * left, clip_range=lambda left: 0.2 * left,
    )  # fmt: skip
    model.learn(70, callback=checkpoints(20, folder / "runs"))
    return folder


@pytest.mark.parametrize("version", PACKAGES)
def test_what_sb3_has_saved_every_python_reads(
    version: str, environment: Callable[[str], Path], scheduled: Path
) -> None:
    """M1: of the schedules no code is saved, so that none needs the Python that compiled it; the rest is plain data."""
    here = json.loads(run(sys.executable, READING, "runs", cwd=scheduled))
    there = json.loads(run(environment(version) / "python", READING, "runs", cwd=scheduled))
    assert there.pop("python") == version
    assert here.pop("python") != "" and there == here
    assert here["pickles"] == []
    functions = " ".join(here["functions"])
    assert "learning_rate" in functions and "clip_range" in functions


def test_left_cold_it_would_not_end_the_same(
    environment: Callable[[str], Path],
    undisturbed: Callable[[str], dict[str, Any]],
    killed: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    root = tmp_path / "cold"
    shutil.copytree(killed("3.11"), root)
    told = json.loads(run(environment("3.13") / "python", TRAVEL, "runs", "cold", cwd=root))
    assert told["from"] == SAVED_AT
    assert told["digest"] != undisturbed("3.13")["digest"]
