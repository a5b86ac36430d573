"""What the demo concludes from records: repeated steps, the first difference, weights that differ by a bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the demo's extra is not installed")

from demo.lane import Lane
from demo.trail import RECORD, Trail, diverge, last_step, read
from demo.verdict import depart, weights_apart


def write(path: Path, *processes: dict[int, int]) -> Path:
    """Append what each process did: step -> digest."""
    with path.open("ab") as file:
        for pid, steps in enumerate(processes, start=100):
            file.write(
                np.array([(pid, step, digest, 0, 0.0) for step, digest in steps.items()], RECORD).tobytes()
            )
    return path


def steps_of(trail: Trail) -> dict[int, int]:
    return dict(zip(trail.records["step"].tolist(), trail.records["digest"].tolist(), strict=True))


def test_what_was_done_again_counts_and_what_was_lost_does_not(tmp_path: Path) -> None:
    trail = read(write(tmp_path / "t", {4: 1, 8: 2, 12: 3}, {8: 20, 12: 30}, {12: 300, 16: 400}))
    assert steps_of(trail) == {4: 1, 8: 20, 12: 300, 16: 400}
    assert trail.starts == (0, 4, 8)


def test_a_record_cut_off_by_the_kill_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t", {4: 1, 8: 2})
    with path.open("ab") as file:
        file.write(b"half")
    assert last_step(path) == 8
    assert last_step(tmp_path / "none") == 0


def test_the_first_difference_is_found_and_extra_steps_are_differences(tmp_path: Path) -> None:
    a = read(write(tmp_path / "a", {1: 1, 2: 2, 3: 3}))
    assert diverge(a, a).differing == 0
    other = diverge(a, read(write(tmp_path / "b", {1: 1, 2: 9, 3: 3, 4: 4})))
    assert (other.differing, other.first, other.steps) == (2, 2, 3)


def run(folder: Path, digests: dict[int, int], weights: list[float]) -> Lane:
    folder.mkdir()
    write(folder / "trail.bin", digests)
    np.savez(folder / "weights.npz", w=np.array(weights, np.float32))
    return Lane(folder, (), 0.0)


@pytest.mark.parametrize(
    ("weights", "exact"),
    [
        ([1.0, 0.0], True),
        ([1.0, -0.0], False),
        ([1.0, float(np.nextafter(np.float32(0), np.float32(1)))], False),
    ],
)
def test_one_bit_of_a_weight_is_a_difference(tmp_path: Path, weights: list[float], exact: bool) -> None:
    undisturbed = run(tmp_path / "a", {1: 1}, [1.0, 0.0])
    other = run(tmp_path / "b", {1: 1}, weights)
    assert depart(undisturbed, other).none is exact
    assert (weights_apart(undisturbed.folder, other.folder) == 0.0) is exact


def test_a_run_without_a_final_checkpoint_is_not_exact(tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "a", {1: 1}, [1.0])
    other = run(tmp_path / "b", {1: 1}, [1.0])
    assert not depart(undisturbed, other, finals=()).none


def test_weights_that_are_no_number_are_infinitely_far(tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "a", {1: 1}, [1.0])
    other = run(tmp_path / "b", {1: 1}, [float("nan")])
    assert weights_apart(undisturbed.folder, other.folder) == float("inf")
