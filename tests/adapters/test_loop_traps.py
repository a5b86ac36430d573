"""Traps of a resumed loop that a person writes: what goes wrong elsewhere without a word comes out right.

Each training is run three times in fresh processes: undisturbed; killed and resumed by another interpreter with
another seed of the hashes (the one of numbers and the one over epochs twice); and resumed with one part left cold. The ids are those of our catalogue
of public reports.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, TensorDataset

from unbroken.adapters.loop import Run

SCRIPT = Path(__file__).parent / "loop_traps_script.py"
FIRST, SECOND = 8, 16
"""Steps at which a training is killed: the newest checkpoints are of steps 5 and 15."""

COLD: dict[str, tuple[str, ...]] = {
    "late_scheduler": ("initial rate",),
    "one_cycle": ("scheduler",),
    "phase_change": ("moments",),
    "masters": ("masters",),
    "narrow_moments": ("dtype",),
    "early_generators": ("construction",),
    "counters": ("owed", "average", "alpha", "pool"),
    "epochs": ("pass",),
}
TWICE = ("counters", "epochs")
Told = dict[str, Any]


def run_all(jobs: list[Told], *, seed: int) -> list[Told]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(jobs)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(seed), "UNBROKEN_ROOT": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [-9 if "kill_at" in job else 0 for job in jobs]
    assert [job["rc"] for job in told] == expected, done.stderr
    return told


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Told]:
    """How each training ended, by its name and what was left cold; `undisturbed` and `resumed` beside these."""
    folder = tmp_path_factory.mktemp("traps")

    def root(trap: str, kind: str) -> str:
        return str(folder / trap / kind.replace(" ", "_"))

    first = [{"trap": trap, "root": root(trap, "undisturbed")} for trap in COLD]
    whole = run_all(
        [*first, *({"trap": trap, "root": root(trap, "resumed"), "kill_at": FIRST} for trap in COLD)], seed=1
    )[: len(first)]
    cold = [(trap, part) for trap, parts in COLD.items() for part in parts]
    for trap, part in cold:
        shutil.copytree(root(trap, "resumed"), root(trap, part))
        (Path(root(trap, part)) / "resumed").rename(Path(root(trap, part)) / Path(root(trap, part)).name)
    colds = [{"trap": trap, "root": root(trap, part), "cold": part} for trap, part in cold]
    again = [{"trap": trap, "root": root(trap, "resumed"), "kill_at": SECOND} for trap in TWICE]
    once = [{"trap": trap, "root": root(trap, "resumed")} for trap in COLD if trap not in TWICE]
    second = run_all([*again, *colds, *once], seed=2)[len(again) :]
    third = run_all([{"trap": trap, "root": root(trap, "resumed")} for trap in TWICE], seed=3)
    found = {(job["trap"], "undisturbed"): job for job in whole}
    return found | {(job["trap"], job.get("cold", "resumed")): job for job in [*second, *third]}


@pytest.mark.parametrize("trap", COLD)
def test_killed_it_ends_as_if_it_had_never_stopped(ends: dict[tuple[str, str], Told], trap: str) -> None:
    """C2 (a scheduler's momentum too), B14 (optimizer and scheduler rebuilt), B10 (masters), B11 (narrow moments),
    B12 (hyper-parameters keep their types), D3 (generators come last), A15, B8, B13 and C11 (numbers), G7 and G8
    (order of the data, in this epoch and the next)."""
    undisturbed, resumed = ends[trap, "undisturbed"], ends[trap, "resumed"]
    assert (undisturbed["from"], resumed["from"]) == (0, 15 if trap in TWICE else 5)
    assert "not exact" not in resumed["text"]
    assert resumed["end"] == undisturbed["end"]


@pytest.mark.parametrize(("trap", "part"), [(trap, part) for trap, parts in COLD.items() for part in parts])
def test_with_that_part_left_cold_it_does_not(
    ends: dict[tuple[str, str], Told], trap: str, part: str
) -> None:
    cold = ends[trap, part]
    assert cold["from"] == 5
    assert cold["end"] != ends[trap, "undisturbed"]["end"]


@pytest.mark.parametrize("every", [1, 3])
def test_how_often_a_loop_saves_does_not_change_the_order_of_its_data(every: int, tmp_path: Path) -> None:
    """G7, with a generator that the script holds: one of the epochs is left early, so that it draws nothing more."""

    def seen(every: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, shuffle=True, generator=generator)
        run = Run(tmp_path / str(every), every=every, quiet=True)
        run.track(generator=generator)
        run.vars.batches = iter(loader)
        found: list[list[int]] = []
        run.scratch(found)
        for step in run.steps(12):
            run.wait()  # or the next save may be left out, while this one is written
            if step in (3, 4, 6):
                run.vars.batches = iter(loader)
            found.append(next(run.vars.batches, [torch.zeros(0)])[0].tolist())
        return found

    assert seen(every) == seen(10**6)
