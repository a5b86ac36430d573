"""Kill moments are drawn from the seed alone and never come where nothing would be lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.engine.progress import LAYOUT, Progress
from unbroken.errors import ConfigError
from unbroken.proving.moments import KillMoment, Trigger, draw_moments
from unbroken.proving.progress import ProgressFile, Reached


@given(kills=st.integers(1, 50), seed=st.integers(), steps=st.integers(2, 10**9))
def test_moments_are_ordered_and_inside_the_run(kills: int, seed: int, steps: int) -> None:
    moments = draw_moments(kills, seed=seed, steps=steps, seconds=10.0)
    assert len(moments) == kills
    assert list(moments) == sorted(moments, key=lambda m: m.step)
    assert all(1 <= m.step <= steps and 0 <= m.delay <= 0.05 for m in moments)
    assert moments == draw_moments(kills, seed=seed, steps=steps, seconds=10.0)


def test_another_seed_gives_other_moments() -> None:
    first, second = (draw_moments(3, seed=seed, steps=10**6, seconds=10.0) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize(("kills", "steps"), [(0, 100), (-1, 100), (3, 0), (3, 1)])
def test_what_cannot_be_drawn_is_an_error(kills: int, steps: int) -> None:
    with pytest.raises(ConfigError):
        draw_moments(kills, seed=7, steps=steps, seconds=1.0)


def test_a_kill_waits_for_work_to_lose() -> None:
    trigger = Trigger(KillMoment(100, 0.0), needs_commit=False)
    assert not trigger.due(None, 0.0)
    assert not trigger.due(Reached(99, 0), 0.0)
    assert not trigger.due(Reached(100, 100), 0.0)
    assert trigger.due(Reached(101, 100), 0.0)
    assert trigger.due(Reached(100, 0), 0.0)


def test_a_kill_waits_for_something_to_restore() -> None:
    trigger = Trigger(KillMoment(100, 0.0), needs_commit=True)
    assert not trigger.due(Reached(500, 0), 0.0)
    assert trigger.due(Reached(501, 500), 0.0)


def test_the_delay_counts_from_the_step() -> None:
    trigger = Trigger(KillMoment(10, 0.5), needs_commit=False)
    assert not trigger.due(Reached(9, 0), 0.0)
    assert not trigger.due(Reached(10, 0), 1.0)
    assert not trigger.due(Reached(11, 11), 1.6)
    assert trigger.due(Reached(12, 11), 1.7)


def test_progress_file(tmp_path: Path) -> None:
    path = tmp_path / "1"
    file = ProgressFile(path)
    assert file.read() is None
    path.write_bytes(b"")
    assert file.read() is None
    path.write_bytes(LAYOUT.pack(12, 10, 0))
    assert file.read() == Reached(12, 10)
    file.close()


def test_what_the_engine_writes_is_what_is_read(tmp_path: Path) -> None:
    written = Progress(str(tmp_path / "1"))
    file = ProgressFile(tmp_path / "1")
    assert file.read() is None
    written.step(7)
    assert file.read() == Reached(7, 0)
    written.committed(5)
    assert file.read() == Reached(7, 5)
    written.close()
    file.close()
