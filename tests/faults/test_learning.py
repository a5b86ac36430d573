"""B, C, D: optimizers, targets, temperatures, schedules and draws that were lost, reset or made of another type."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import learning
from .starts import Starts, Training, differing


@pytest.mark.parametrize(
    "training",
    [
        learning.OwnedByAHook,
        learning.CachedTemperature,
        learning.AverageReward,
        learning.TwoPhases,
        learning.Masters,
        learning.OneCycle,
        learning.TargetNetwork,
        learning.SelfPlay,
        learning.Dropout,
    ],
    ids=lambda training: training.__name__,  # pyright: ignore[reportUnknownLambdaType]
)
def test_what_is_learned_goes_on(training: type[Training], starts: Starts, tmp_path: Path) -> None:
    undisturbed, resumed, cold = starts.three_ways(training, tmp_path)
    assert differing(undisturbed, resumed) == []
    assert [place for place in differing(undisturbed, cold) if place.startswith("policy/")] != []
