"""Servers as processes: they start, serve a rollout, and come back at their address."""

from __future__ import annotations

from pathlib import Path

import pytest
from stack import Stack, counter


def test_a_rollout_over_real_processes(tmp_path: Path) -> None:
    with Stack(tmp_path, wrapped=False) as stack:
        assert stack.run(counter(1, 2))["reward"] == 1.0
        assert stack.model_calls() == [0, 1, 2, 3]
        before = stack.addresses
        stack.restart("all")
        assert stack.addresses == before
        assert stack.run(counter(4))["reward"] == 1.0
