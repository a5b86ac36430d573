"""A run to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the run `runs/tiny/tiny`: checkpoints at the steps 20, 30 and 40. Read only."""
    folder = tmp_path_factory.mktemp("trained")
    weights = np.arange(3000.0)
    source = GraftSource({"weights": weights, "generators": GlobalGenerators()}, policy_of_loaded())
    with CheckpointEngine(source, Settings(root=folder / "runs/tiny", keep_last=3), environment={}) as engine:
        engine.resume()
        for step in (10, 20, 30):
            weights += 0.5
            engine.save(step, reason="it was time", wait=True)
        weights += 0.5
        engine.save(40, reason="end of training", position="end", metrics={"reward": 1.5})
    (folder / "empty").mkdir()
    (folder / "train.py").write_text("pass\n")
    return folder
