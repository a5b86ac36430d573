"""A: replay and rollout memory that was lost, partial, doubled or malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import memories
from .starts import Starts, Training, differing


@pytest.mark.parametrize(
    "training",
    [
        memories.Prefetching,
        pytest.param(memories.TorchRLPrefetch, marks=pytest.mark.exactness),
        pytest.param(memories.TorchRLRows, marks=pytest.mark.exactness),
        memories.BuiltLater,
        memories.Memmapped,
        memories.SharedWithActors,
        memories.Governed,
        memories.Episodic,
    ],
    ids=lambda training: training.__name__,  # pyright: ignore[reportUnknownLambdaType]
)
def test_its_memory_comes_back_once_and_whole(
    training: type[Training], starts: Starts, tmp_path: Path
) -> None:
    undisturbed, resumed, cold = starts.three_ways(training, tmp_path)
    assert differing(undisturbed, resumed) == []
    assert differing(undisturbed, cold) != []


@pytest.mark.exactness
def test_rows_that_several_threads_drew_ahead_are_used_once_each(starts: Starts, tmp_path: Path) -> None:
    """The script looks at this itself, at its end."""
    training = memories.TorchRLPrefetchOfSeveral
    resumed, cold = tmp_path / "R", tmp_path / "C"
    for root in (resumed, cold):
        starts.run(training, root, kill=training.kills[0])
    starts.run(training, resumed, nth=1)
    with pytest.raises(AssertionError, match="list\\(range\\(64\\)\\)"):
        starts.run(training, cold, cold=True, nth=1)
