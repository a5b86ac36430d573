"""`import unbroken` is cheap: it loads no framework and few modules.

Modules are counted, not milliseconds: a count is the same on a busy machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FRAMEWORKS = frozenset(
    {
        "torch",
        "gymnasium",
        "stable_baselines3",
        "sb3_contrib",
        "ale_py",
        "mujoco",
        "Box2D",
        "cv2",
        "pandas",
        "obstore",
        "ray",
        "lightning",
    }
)
REPORT = "import json, sys; print(json.dumps([m for m in sys.modules if not m.startswith('_')]))"


def modules_after(statement: str) -> set[str]:
    """Return the names of the modules that a new interpreter holds after `statement`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{REPORT}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_no_framework() -> None:
    loaded = {name.split(".")[0] for name in modules_after("import unbroken")}
    assert "unbroken" in loaded
    assert not loaded & FRAMEWORKS
    assert not loaded & {"rich", "typer", "matplotlib"}, "these belong to the command"


EVERY_NAME = "import unbroken\nfor name in unbroken.__all__: getattr(unbroken, name)"
DEPENDENCIES = "import numpy.random, numpy.typing, msgspec, blake3, zstandard"
HEAVY = frozenset({"asyncio", "email", "http", "multiprocessing", "sqlite3", "ssl", "unittest", "xml"})
"""Parts of the standard library that nothing here needs for saving and resuming."""


def test_importing_the_package_adds_itself_and_nothing_else() -> None:
    assert modules_after("import unbroken") - modules_after("import importlib, typing") == {"unbroken"}


def test_every_name_of_the_package_is_there_without_a_framework() -> None:
    loaded = {name.split(".")[0] for name in modules_after(EVERY_NAME)}
    assert not loaded & FRAMEWORKS


def test_every_name_of_the_package_brings_its_dependencies_and_little_else() -> None:
    added = {name.split(".")[0] for name in modules_after(EVERY_NAME) - modules_after(DEPENDENCIES)}
    assert added - sys.stdlib_module_names == {"unbroken"}
    assert not added & HEAVY


def test_the_command_starts_without_a_framework() -> None:
    loaded = {name.split(".")[0] for name in modules_after("import unbroken.cli")}
    assert not loaded & FRAMEWORKS


@pytest.mark.parametrize(
    ("face", "framework"),
    [
        ("sb3", "stable_baselines3"),
        ("rllib", "ray.rllib"),
        ("tune", "ray.tune"),
        ("ray_train", "ray.train"),
        ("lightning", "lightning"),
        ("dcp", "torch.distributed.checkpoint"),
    ],
)
def test_an_adapter_brings_its_framework(face: str, framework: str) -> None:
    pytest.importorskip(framework.partition(".")[0])
    assert framework in modules_after(f"import unbroken.{face}")


@pytest.mark.parametrize("face", ["distributed", "pretrained"])
def test_what_works_without_a_framework_brings_none(face: str) -> None:
    assert not {name.split(".")[0] for name in modules_after(f"import unbroken.{face}")} & FRAMEWORKS
