"""K, and C8 to C10: many starts of one command, and what they leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

import unbroken
from unbroken.repo.opaque import opaque_places
from unbroken.repo.repository import Repository
from unbroken.state.nodes import Coded, Dict, children

from .starts import Starts, Training, differing


class Counting(Training):
    """Counts its steps, and draws."""

    steps = 200
    every = 4

    def __init__(self, run: unbroken.Run) -> None:
        super().__init__(run)
        run.track(total=(total := np.zeros(2)))
        self.total = total

    def step(self, step: int) -> None:
        self.total += (1, np.random.random())  # noqa: NPY002

    def chill(self) -> None:
        self.total[:] = 0


class Elsewhere(Counting):
    """D5: what a program makes without a word of where lies on another device; it draws on the CPU."""

    steps = 14

    def __init__(self, run: unbroken.Run) -> None:
        torch.set_default_device("meta")
        super().__init__(run)

    def step(self, step: int) -> None:
        self.total += (1, torch.rand((), device="cpu").item())

    def chill(self) -> None:
        torch.manual_seed(1)


class Twins(Counting):
    """K5: workers that were forked in the middle of training go through the same code and are no second trainer."""

    steps = 20

    def step(self, step: int) -> None:
        super().step(step)
        if step in (6, 13):
            child = os.fork()
            if not child:
                self.run.save()
                for _ in self.run.steps(self.steps):
                    pass
                os._exit(0)
            os.waitpid(child, 0)


def steps_of(root: Path) -> list[int]:
    return [int(commit.step) for commit in Repository.open(root, root.name).commits()]


def test_the_first_start_and_the_tenth_are_one_command(starts: Starts, tmp_path: Path) -> None:
    """K3: from nothing, from an empty directory, and from one in which a start had no time to save anything."""
    root = tmp_path / "run"
    root.mkdir()
    assert "starts at step 0" in starts.run(Counting, root, kill=0)
    assert "goes on at step 0" in starts.run(Counting, root, kill=6, nth=1)
    assert "goes on at step 4" in starts.run(Counting, root, kill=7, nth=2)
    half = tmp_path / "half"
    (half / "half" / "steps" / "step_000000000004-torn").mkdir(parents=True)
    assert "starts at step 0" in starts.run(Counting, half, kill=0)


def test_twenty_starts_leave_as_many_checkpoints_as_one(starts: Starts, tmp_path: Path) -> None:
    """K4, C8, C9: no start leaves more behind, none goes back further than to the last save, none overwrites."""
    root = tmp_path / "run"
    for nth in range(20):
        starts.run(Counting, root, kill=5 + 4 * nth, nth=nth)
        found = steps_of(root)
        assert found[0] == 4 + 4 * nth
        assert found == sorted(set(found), reverse=True)
        assert len(found) <= 5
    said = starts.run(Counting, root)
    assert [f"goes on at step {step}" in said for step in (4, 40, 80)] == [True, True, True]
    assert len(steps_of(root)) == 5
    files = [path for path in root.rglob("*") if path.is_file()]
    alone = tmp_path / "alone"
    starts.run(Counting, alone)
    assert len(files) <= len([path for path in alone.rglob("*") if path.is_file()]) + 3 * 20, (
        "of a start stays a line of its own: its epoch, its settings, its history"
    )


def test_a_forked_worker_is_no_second_trainer(starts: Starts, tmp_path: Path) -> None:
    root = tmp_path / "run"
    said = starts.run(Twins, root)
    assert said.count("starts at step") == 1
    assert steps_of(root)[0] == 20
    assert len(set(steps_of(root))) == len(steps_of(root))


def test_generators_are_saved_as_plain_numbers(starts: Starts, tmp_path: Path) -> None:
    """D4: nothing of a checkpoint's generators needs unpickling."""
    root = tmp_path / "run"
    starts.run(Counting, root, kill=9)
    repository = Repository.open(root, "run")
    component = repository.load(repository.commits()[0], ["rng_states"]).components["rng_states"]
    assert set(component.roots) == {"generators"}
    generators = component.roots["generators"]
    assert isinstance(generators, Coded)
    found = generators.v
    assert isinstance(found, Dict)
    assert {"python", "numpy", "torch"} <= set(dict(children(found)))
    assert list(opaque_places(component.roots)) == []


def test_a_generator_of_the_cpu_stays_there(starts: Starts, tmp_path: Path) -> None:
    undisturbed, resumed, cold = starts.three_ways(Elsewhere, tmp_path)
    assert differing(undisturbed, resumed) == []
    assert differing(undisturbed, cold) != []
