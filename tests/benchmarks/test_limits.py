from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.limits import Bytes, ReadLimits, SaveLimits, _copy, _split


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_copy_copies_everything(threads: int) -> None:
    changed = [np.arange(length, dtype=np.uint8) for length in (5, 1, 17, 40)]
    staging: Bytes = np.zeros(63, np.uint8)
    parts = _split(changed, staging, threads)
    assert len(parts) == threads
    assert max(sum(map(len, next(zip(*part, strict=True)))) for part in parts) == -(-63 // threads)
    for part in parts:
        _copy(part)
    assert staging.tolist() == np.concatenate(changed).tolist()


def test_save_limits_leave_no_file_behind(tmp_path: Path) -> None:
    changed: list[Bytes] = [np.ones(10_001, np.uint8)]
    found = SaveLimits(10_001, tmp_path).measure(changed)
    assert min(found.copy, found.copy_two, found.buffered) > 0
    assert list(tmp_path.iterdir()) == []


def test_reads_are_of_the_whole_file(tmp_path: Path) -> None:
    limits = ReadLimits(20_000_001, tmp_path / "flat")
    into: Bytes = np.zeros(20_000_001, np.uint8)
    limits._read(into, cold=False)
    assert into.all()
    assert limits.fresh(cold=True) > 0
