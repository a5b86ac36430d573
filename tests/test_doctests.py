"""Every example in a docstring of the package gives what stands below it."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"


def modules() -> list[str]:
    """Return the names of all modules with an example."""
    paths = [path for path in (SOURCE / "unbroken").rglob("*.py") if ">>> " in path.read_text("utf-8")]
    return sorted(".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths)


def check(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


FRAMEWORKS = tuple(name for name in modules() if name.startswith("unbroken.adapters."))


@pytest.mark.parametrize("module", [name for name in modules() if name not in FRAMEWORKS])
def test_an_example_gives_what_it_says(module: str) -> None:
    check(module)


@pytest.mark.exactness
@pytest.mark.parametrize("module", FRAMEWORKS)
def test_an_example_beside_a_framework_gives_what_it_says(module: str) -> None:
    check(module)
