"""One export that many tests read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from tests.adapters.neutral.exported import build, export, train, vector


@dataclass(frozen=True)
class Thirty:
    """A DQN that has trained for some thirty steps, and its export. Nobody changes either."""

    model: Any
    directory: Path


@pytest.fixture(scope="package")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Thirty:
    root = tmp_path_factory.mktemp("thirty")
    model = build("DQN", vector(), gym.spaces.Discrete(3))
    return Thirty(model, export(train(model, 30, root), root / "out"))
