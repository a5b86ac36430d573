"""A9, A13: what a save of a large buffer costs in memory, and a buffer larger than what an old pickle could hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unbroken

from .starts import Starts, Training

MEASURED = """
import sys
import numpy as np
import unbroken
from benchmarks.memory import peak, reset_peak, resident

root, staging = sys.argv[1], {} if sys.argv[2] == "default" else {"staging": int(sys.argv[2])}
rows = np.random.default_rng(1).integers(0, 256, (256 << 10, 1024), dtype=np.uint8)
small = unbroken.Run(f"{root}/small", every=1, quiet=True)
small.track(few=np.zeros(9))
for _ in small.steps(2):  # what is imported, and kept by threads, is not the buffer's
    pass
before = resident()
reset_peak()
run = unbroken.Run(f"{root}/run", every=1, quiet=True, **staging)
run.track(rows=rows)
for _ in run.steps(2):
    rows += 1
print((peak() - before) / rows.nbytes)
truth = rows[::1000].copy()
rows[:] = 0
again = unbroken.Run(f"{root}/run", every=1, quiet=True)
again.track(rows=rows)
for _ in again.steps(3):
    assert np.array_equal(rows[::1000], truth)
"""


@pytest.mark.parametrize(
    ("staging", "least", "most"), [("default", 1, 2), ("0", 0, 0.5)], ids=["one copy", "no copy"]
)
def test_a_save_takes_no_more_than_one_copy_or_none_at_all(
    staging: str, least: float, most: float, tmp_path: Path
) -> None:
    """A9, as the kernel counts it, in a process of its own: 256 MiB that no compression makes smaller."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURED, str(tmp_path), staging],
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
    )
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    assert least <= float(done.stdout) < most


class Large(Training):
    """A13: 5 GiB of rows; each step makes a row beyond the fourth out of the one that was made last."""

    steps = 5
    every = 3
    kills = (4,)

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        self.rows = np.zeros((5 << 20, 1024), np.uint8)
        run.track(rows=self.rows)

    def step(self, step: int) -> None:
        self.rows[step - 9] = self.rows[step - 10] * 3 + np.random.randint(256, size=1024)  # noqa: NPY002

    def chill(self) -> None:
        self.rows[-9:] = 0

    def check(self) -> None:
        assert not self.rows[:-9].any()
        print("end", self.rows[-9:-4].tobytes().hex())


@pytest.mark.exactness
def test_a_buffer_beyond_four_gibibytes_comes_back(starts: Starts, tmp_path: Path) -> None:
    undisturbed, resumed, cold = (tmp_path / name / "run" for name in "URC")
    undisturbed.parent.mkdir()
    resumed.parent.mkdir()
    whole = starts.run(Large, undisturbed)
    starts.run(Large, resumed, kill=Large.kills[0])
    shutil.copytree(resumed.parent, cold.parent)
    gone_on = starts.run(Large, resumed, nth=1)
    chilled = starts.run(Large, cold, cold=True, nth=1)
    assert "goes on at step 3" in gone_on and "goes on at step 3" in chilled
    end, gone_on, chilled = (said[said.rindex("end ") :] for said in (whole, gone_on, chilled))
    assert gone_on == end
    assert chilled != end
