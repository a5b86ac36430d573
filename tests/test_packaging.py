"""What is given to users: the sdist, the wheel that is built from it, and what the wheel is once it is installed.

`scripts/package` runs all of it, on the files in `dist/` and with an installation that takes everything from a package
index. The other tests build in a folder of their own, and the environment that they install the wheel into borrows the
dependencies of this one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from functools import partial
from importlib import metadata, resources
from pathlib import Path, PurePosixPath

import pytest
import tomllib

from tests.cli.command import unbroken
from tests.test_import import FRAMEWORKS, modules_after

ROOT = Path(__file__).parent.parent
TRAIN = Path(__file__).parent / "packaging" / "train.py"
CACHES = {
    "__pycache__",
    ".tools",
    ".git",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    "dist",
    "runs",
}
BUILD = """
import os, sys, tarfile
from hatchling import build

root, folder = sys.argv[1:]
os.chdir(root)
name = build.build_sdist(folder)
with tarfile.open(os.path.join(folder, name)) as archive:
    archive.extractall(os.path.join(folder, "unpacked"), filter="data")
os.chdir(os.path.join(folder, "unpacked", name.removesuffix(".tar.gz")))
build.build_wheel(folder)
"""
"""What `python -m build` asks of the project's backend, without an environment of its own for each step."""
TYPED = """
import numpy as np
import unbroken

run = unbroken.Run("runs", every=unbroken.Every(steps=10), keep_last=3)
run.track(weights=np.zeros(3))
for step in run.steps(20):
    steps: int = step
    run.record(episodes=1, reward=float(steps))
"""
MISTAKEN = """
import unbroken

run = unbroken.Run("runs", keep_last="five")
run.steps("twenty")
"""

pytestmark = pytest.mark.slow


def done(*command: str | Path, cwd: Path, expect: int = 0, variables: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return what it printed."""
    # None of ours: a user has none, and `PYTHONPATH` would put the source in the place of the wheel.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "UNBROKEN"))}
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env={**kept, **(variables or {})}, capture_output=True, text=True, check=False, timeout=1_500,
    )  # fmt: skip
    assert ended.returncode == expect, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel: the one that `UNBROKEN_DIST` names, or what is built here."""
    if given := os.environ.get("UNBROKEN_DIST"):
        return ROOT / given
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-c", BUILD, ROOT, folder, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def in_sdist(dist: Path) -> set[str]:
    """The files in the sdist, below its one folder."""
    (found,) = dist.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = [PurePosixPath(member.name) for member in archive.getmembers() if member.isfile()]
    assert {name.parts[0] for name in names} == {found.name.removesuffix(".tar.gz")}
    return {str(PurePosixPath(*name.parts[1:])) for name in names}


@pytest.fixture(scope="module")
def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def about(wheel: Path) -> Message:
    """The metadata in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def new_environment(folder: Path) -> Path:
    done(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return folder / "bin"


def install(programs: Path, *what: str | Path) -> None:
    # What `pip --python` does, without a process of its own that starts this one.
    pip = Path(str(resources.files("pip")))
    done(programs / "python", pip, "install", "-q", "--disable-pip-version-check", *what, cwd=programs)


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs lie of an environment that has the wheel, and all else from the one that runs this test.

    A `.pth` file there does not count here, so the editable installation of the source does not come with it.
    """
    found = new_environment(tmp_path_factory.mktemp("installed") / "environment")
    install(found, "--no-deps", "--no-compile", wheel)
    (packages,) = found.parent.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return found


def test_the_sdist_holds_the_whole_project_and_nothing_that_was_made(in_sdist: set[str]) -> None:
    assert {"LICENSE", "README.md", "pyproject.toml", "constraints.txt", "Makefile"} <= in_sdist
    parts = {part for name in in_sdist for part in PurePosixPath(name).parts}
    assert not parts & CACHES
    assert not [part for part in parts if part.startswith((".venv", ".coverage", ".installed"))]
    if shutil.which("git") and (ROOT / ".git").exists():
        # As it was committed: somebody may be at work in the tree.
        committed = done("git", "ls-tree", "-r", "--name-only", "-z", "HEAD", cwd=ROOT).split("\0")
        present = {name for name in committed if name and (ROOT / name).is_file()}
        assert present <= in_sdist


def test_the_wheel_holds_the_package_with_every_file_that_it_reads_and_no_test(
    in_sdist: set[str], in_wheel: set[str]
) -> None:
    source = {name.removeprefix("src/") for name in in_sdist if name.startswith("src/unbroken/")}
    assert {name for name in in_wheel if ".dist-info/" not in name} == source
    assert "unbroken/py.typed" in in_wheel
    assert [name for name in in_wheel if name.endswith(".dist-info/licenses/LICENSE")]


def test_the_metadata_says_what_the_project_says(about: Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert about["Name"] == "unbroken"
    assert about["Requires-Python"] == project["requires-python"]
    assert about["License-Expression"] == project["license"]
    assert set(about.get_all("Provides-Extra") or ()) == set(project["optional-dependencies"])
    assert "Typing :: Typed" in (about.get_all("Classifier") or ())
    assert about.get_payload() == (ROOT / "README.md").read_text()


def test_one_version_everywhere(wheel: Path, about: Message, programs: Path, tmp_path: Path) -> None:
    (version,) = {wheel.name.split("-")[1], about["Version"]}
    ask = "import unbroken; print(unbroken.__version__, unbroken.__file__)"
    told, place = done(programs / "python", "-c", ask, cwd=tmp_path).split()
    assert told == version
    assert Path(place).is_relative_to(programs.parent)
    assert done(programs / "unbroken", "--version", cwd=tmp_path).splitlines()[0] == f"unbroken {version}"


def test_a_loop_runs_from_the_wheel_and_its_run_can_be_looked_at(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(TYPED)
    done(programs / "python", "loop.py", cwd=tmp_path)
    assert re.search(r"(?m)^ *20 .* intact", done(programs / "unbroken", "verify", "runs", cwd=tmp_path))


def test_the_version_names_what_is_installed_without_importing_it() -> None:
    ask = "import io, contextlib, unbroken.cli\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
    ask += "    unbroken.cli.main(['--version'])\n"
    assert not {name.partition(".")[0] for name in modules_after(ask)} & FRAMEWORKS
    lines = unbroken("--version", cwd=ROOT).out.splitlines()
    for name in ("numpy", "torch", "stable-baselines3", "gymnasium", "ray", "obstore"):
        assert f"{name} {metadata.version(name)}" in lines
    # The test extra brings mlflow-skinny, which is all that is used of mlflow.
    assert f"mlflow-skinny {metadata.version('mlflow-skinny')}" in lines
    missing = lines[-1].partition("not installed: ")[2].split(", ")
    assert "mlflow" not in missing
    assert lines[1].startswith(f"python {sys.version.split()[0]} ")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_shell_completes_the_commands(shell: str, programs: Path, tmp_path: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    # From inside that shell: which one it is, the command finds out from the process that started it.
    script = done(found, "-c", f"{programs}/unbroken --show-completion; true", cwd=tmp_path)
    asked = {
        "zsh": {"_TYPER_COMPLETE_ARGS": "unbroken ve"},
        "fish": {"_TYPER_COMPLETE_ARGS": "unbroken ve", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    assert f"complete_{shell}" in script
    asked["_UNBROKEN_COMPLETE"] = f"complete_{shell}"
    answer = done(programs / "unbroken", cwd=tmp_path, variables=asked)
    assert "verify" in answer
    assert "prune" not in answer


def test_bash_completes_through_the_installed_script(programs: Path, tmp_path: Path) -> None:
    found = shutil.which("bash")
    if found is None:
        pytest.skip("bash is not installed")
    at_home = {"HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    done(found, "-c", "unbroken --install-completion; true", cwd=tmp_path, variables=at_home)
    typed = 'source ~/.bashrc; COMP_WORDS=(unbroken hist); COMP_CWORD=1; "$(complete -p unbroken | grep -oP "(?<=-F )\\S+")"'
    said = done(
        found,
        "-c",
        f'{typed} unbroken hist unbroken; echo "${{COMPREPLY[@]}}"',
        cwd=tmp_path,
        variables=at_home,
    )
    assert said.split() == ["history"]


checker = pytest.mark.parametrize("checker", ["mypy", "pyright"])


@pytest.mark.exactness
@checker
def test_the_types_of_the_wheel_reach_a_script(checker: str, programs: Path, tmp_path: Path) -> None:
    if shutil.which(checker, path=Path(sys.executable).parent) is None:
        pytest.skip(f"{checker} is not installed (extra dev)")
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "mistaken.py").write_text(MISTAKEN)
    python = {"mypy": "--python-executable", "pyright": "--pythonpath"}[checker]
    check = partial(done, sys.executable, "-m", checker, python, programs / "python", cwd=tmp_path)
    strict = {"mypy": ("--strict", "--no-incremental"), "pyright": ()}[checker]
    check(*strict, "typed.py")
    said = check(*strict, "mistaken.py", expect=1)
    assert '"five"' in said or "keep_last" in said
    assert "Found 2 errors" in said or "2 errors" in said


def train(programs: Path, folder: Path, *words: str, expect: int = 0) -> Mapping[str, str]:
    said = done(
        programs / "python", TRAIN, *words, cwd=folder, expect=expect, variables={"OMP_NUM_THREADS": "1"}
    )
    told = [line.split() for line in said.splitlines() if line.startswith("began at ")]
    return {"began": told[0][2], "weights": told[0][4]} if told else {}


@pytest.mark.exactness
def test_a_new_environment_trains_is_killed_and_ends_as_the_undisturbed_run(
    wheel: Path, tmp_path: Path
) -> None:
    programs = new_environment(tmp_path / "environment")
    install(programs, "--constraint", ROOT / "constraints.txt", f"{wheel}[sb3,report]")
    undisturbed = train(programs, tmp_path, "whole")
    assert undisturbed["began"] == "0"
    train(programs, tmp_path, "cut", "200", expect=-signal.SIGKILL)
    resumed = train(programs, tmp_path, "cut")
    assert int(resumed["began"]) > 0
    assert resumed["weights"] == undisturbed["weights"]
    done(programs / "unbroken", "report", "cut", "-o", "report.html", cwd=tmp_path)
    assert "<html" in (tmp_path / "report.html").read_text()
