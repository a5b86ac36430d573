"""Neither a save nor a start leaves a mark on what the program holds: it can do with it what it could before."""

from __future__ import annotations

from pathlib import Path

from . import untouched
from .starts import Starts, differing


def test_memory_grows_in_place_after_saves_and_starts_as_without_them(starts: Starts, tmp_path: Path) -> None:
    undisturbed, resumed, cold = starts.three_ways(untouched.Growing, tmp_path)
    assert differing(undisturbed, resumed) == []
    assert differing(undisturbed, cold) != []
