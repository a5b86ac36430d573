"""The demo's killing: real processes, killed for real, and started again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from demo import lane
from demo.lane import LaneFailed, Moment, draw_moments, run_lane

COUNTER = """
import os, struct, sys
from pathlib import Path
trail = Path("trail.bin")
size = trail.stat().st_size if trail.exists() else 0
for step in range(size // 24 + 1, 201):
    with trail.open("ab") as file:
        file.write(struct.pack("<IIQIf", os.getpid(), step, step, 0, 0.0))
    if step == 150 and not Path("waited").exists():
        Path("waited").touch()
        sys.stdin.read() or __import__("signal").pause()
"""
"""Counts to 200, goes on where it was, and waits at 150 for the kill."""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lane, "ROOT", tmp_path)
    (tmp_path / "counter.py").write_text(COUNTER)
    (tmp_path / "short.py").write_text("print('nothing to do')")
    (tmp_path / "broken.py").write_text("raise SystemExit('no such environment')")
    return tmp_path


def test_a_lane_is_killed_and_goes_on(scripts: Path) -> None:
    done = run_lane("counter", "x", scripts / "run", [Moment(150, 0.0)])
    assert done.kills == (150,)
    assert done.trail.starts == (0, 150)
    assert done.trail.records["step"].tolist() == list(range(1, 201))


def test_a_training_that_ends_before_its_kill_is_an_error(scripts: Path) -> None:
    with pytest.raises(LaneFailed, match=r"It ended before step 150[\s\S]*nothing to do"):
        run_lane("short", "x", scripts / "run", [Moment(150, 0.0)])


def test_a_training_that_fails_is_an_error_with_its_last_words(scripts: Path) -> None:
    with pytest.raises(LaneFailed, match="no such environment"):
        run_lane("broken", "x", scripts / "run")


def test_moments_are_spread_over_the_run_and_repeat_with_their_seed() -> None:
    moments = draw_moments(random.Random(3), count=3, first=1_000, last=4_000)
    assert [moment.step // 1_000 for moment in moments] == [1, 2, 3]
    assert moments == draw_moments(random.Random(3), count=3, first=1_000, last=4_000)
