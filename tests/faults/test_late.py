"""What a training makes while it runs comes back, although no start of the script has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import late
from .starts import Starts, Training, differing


@pytest.mark.parametrize(
    "training",
    [late.KeepsBest, late.PoolOfCopies, late.SecondLearner],
    ids=lambda training: training.__name__,  # pyright: ignore[reportUnknownLambdaType]
)
def test_networks_that_were_made_while_training_ran_come_back(
    training: type[Training], starts: Starts, tmp_path: Path
) -> None:
    undisturbed, resumed, cold = starts.three_ways(training, tmp_path)
    assert differing(undisturbed, resumed) == []
    assert [place for place in differing(undisturbed, cold) if place.startswith("policy/")] != []
