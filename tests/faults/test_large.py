"""A13: a buffer larger than what an old pickle could hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unbroken


@pytest.mark.exactness
def test_a_buffer_beyond_four_gibibytes_comes_back(tmp_path: Path) -> None:
    rows, width = 5 << 20, 1024
    buffer = np.zeros(0)
    for start in range(2):
        buffer = np.zeros((rows, width), np.uint8)
        run = unbroken.Run(tmp_path / "run", every=10, quiet=True)
        run.track(buffer=buffer)
        for step in run.steps(2 + start):
            buffer[step - 3, :] = 7 + step
        assert run.report is not None
        assert run.report.restored is bool(start)
    assert [int(row[5]) for row in buffer[-4:]] == [0, 7, 8, 9]
    assert buffer[:-4].max() == 0
