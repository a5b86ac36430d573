"""All cells, and the choice of some."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from fnmatch import fnmatch

from exactness import algorithms, environments, loops
from exactness.cell import Cell

CELLS: tuple[Cell, ...] = (*algorithms.CELLS, *environments.CELLS, *loops.CELLS)
BY_KEY = {cell.key: cell for cell in CELLS}


def chosen(patterns: Sequence[str]) -> list[Cell]:
    """Return the cells whose key has one of the patterns in it (`contrib`) or fits one (`PPO/*`), whatever the case;
    all where there is none."""
    wanted = [pattern.lower() for pattern in patterns] or ["*"]
    return [
        cell
        for cell in CELLS
        if any(one in cell.key.lower() or fnmatch(cell.key.lower(), one) for one in wanted)
    ]


def missing(cell: Cell) -> list[str]:
    """Return the modules that a cell needs and this environment lacks."""
    return [name for name in cell.needs if importlib.util.find_spec(name) is None]
