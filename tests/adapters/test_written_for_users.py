"""What users are shown how to write: the pages hold it whole. That it brings back everything is in tests/quickstart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unbroken

ROOT = Path(__file__).parents[2]
PAGES = {"adapter": "adapters.md", "capturer": "capturers.md"}


@pytest.mark.parametrize("example", PAGES)
def test_the_page_holds_the_whole_program(example: str) -> None:
    page = (ROOT / "docs" / PAGES[example]).read_text()
    for file in sorted((ROOT / "examples" / example).glob("*.py")):
        assert f"# examples/{example}/{file.name}\n{file.read_text()}```\n" in page, file.name


def test_the_adapter_is_as_short_as_the_page_says() -> None:
    lines = (ROOT / "examples" / "adapter" / "minilearn_unbroken.py").read_text().splitlines()
    assert len(lines) <= 60


class Adapter:
    """Tracked, told by two methods, and with a way back to the run that saves it, as an adapter's parts have."""

    def __init__(self, run: unbroken.Run) -> None:
        self.run = run
        self.count = 0

    def capture(self) -> dict[str, int]:
        return {"count": self.count}

    def restore(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize("total", [3, 5])
def test_a_tracked_object_may_lead_back_to_its_run(total: int, tmp_path: Path) -> None:
    counts = []
    for until in (total, total + 4):
        run = unbroken.Run(tmp_path / "run", every=1, quiet=True)
        adapter = Adapter(run)
        run.track(adapter=adapter, weights=np.zeros(2))
        for _ in run.steps(until):
            adapter.count += 1
        counts.append(adapter.count)
    assert counts == [total, total + 4]


class Trainer:
    """Holds its run and what the loop iterates over, and is tracked itself."""

    def __init__(self, root: Path) -> None:
        self.weights = np.zeros(2)
        self.run = unbroken.Run(root, every=1, quiet=True)
        self.run.track(trainer=self)

    def train(self, total: int) -> None:
        self.steps = self.run.steps(total)
        for _ in self.steps:
            self.weights += 1


def test_a_tracked_object_may_hold_its_run(tmp_path: Path) -> None:
    for total in (3, 7):
        trainer = Trainer(tmp_path / "run")
        trainer.train(total)
        assert trainer.weights.tolist() == [total, total]
