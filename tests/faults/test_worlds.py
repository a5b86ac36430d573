"""E, F: what environments, their wrappers and running statistics hold, and others have lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import worlds
from .starts import Starts, Training, differing


@pytest.mark.parametrize(
    "training",
    [
        worlds.EpisodeIds,
        worlds.Integrator,
        worlds.OnTheClass,
        worlds.OnTheClassInWorkers,
        worlds.Limited,
        worlds.Counted,
    ],
    ids=lambda training: training.__name__,  # pyright: ignore[reportUnknownLambdaType]
)
def test_the_world_goes_on(training: type[Training], starts: Starts, tmp_path: Path) -> None:
    undisturbed, resumed, cold = starts.three_ways(training, tmp_path)
    assert differing(undisturbed, resumed) == []
    assert differing(undisturbed, cold) != []
