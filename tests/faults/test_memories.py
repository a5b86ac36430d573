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
        memories.BuiltLater,
        memories.Memmapped,
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
