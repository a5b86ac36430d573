"""`import unbroken` is cheap: it loads no framework and few modules.

Modules are counted, not milliseconds: a count is the same on a busy machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FRAMEWORKS = frozenset(
    {"torch", "gymnasium", "stable_baselines3", "sb3_contrib", "ale_py", "mujoco", "Box2D", "cv2", "pandas"}
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


def test_importing_the_package_adds_few_modules() -> None:
    needed = modules_after("import numpy, msgspec, blake3, zstandard, logging, concurrent.futures, typing")
    added = modules_after("import unbroken") - needed
    assert len(added) < 150, sorted(added)


def test_every_name_of_the_package_is_there_without_a_framework() -> None:
    loaded = modules_after("import unbroken\nfor name in unbroken.__all__: getattr(unbroken, name)")
    assert not {name.split(".")[0] for name in loaded} & FRAMEWORKS


def test_the_command_starts_without_a_framework() -> None:
    loaded = {name.split(".")[0] for name in modules_after("import unbroken.cli")}
    assert not loaded & FRAMEWORKS


@pytest.mark.parametrize("face", ["unbroken.sb3"])
def test_an_adapter_brings_its_framework(face: str) -> None:
    pytest.importorskip("stable_baselines3")
    assert "stable_baselines3" in modules_after(f"import {face}")
