"""Two interpreters in which trainings are killed and resumed, each of which forks a child for each order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .asked import Interpreter


@pytest.fixture(scope="package")
def first() -> Iterator[Interpreter]:
    yield from _interpreter(1)


@pytest.fixture(scope="package")
def second() -> Iterator[Interpreter]:
    """Another hash seed than that of the first: nothing may depend on the order of a set."""
    yield from _interpreter(2)


def _interpreter(hash_seed: int) -> Iterator[Interpreter]:
    from .asked import Interpreter

    interpreter = Interpreter(hash_seed)
    yield interpreter
    interpreter.close()
