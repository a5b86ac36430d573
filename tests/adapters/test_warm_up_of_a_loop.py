"""A loop of one's own tries its checkpoint before it goes on, each time in a process of its own."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.engine.children import die, in_child
from unbroken import Run
from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository

STEPS = 60


def script(root: Path, *, kill: int = -1, trial: str = "none", untidy: bool = False) -> int:
    """Train in a process of its own; what it comes to lies in the file `end`."""

    def body() -> None:
        weights, rng = np.zeros(4), np.random.default_rng(5)
        run = Run(root / "runs", job="run", every=10, quiet=True)
        run.track(weights=weights, rng=rng)
        run.vars.count = 0

        def evaluate() -> str:
            older = run.vars.count
            rng.standard_normal(7)
            weights[:] = 99.0
            run.vars.count = -1
            return f"it is of step {older}" if trial == "rejects the first" and older == 20 else ""

        if trial != "none":
            run.warm_up(evaluate)
        for step in run.steps(STEPS):
            run.wait()  # so that which steps are saved is no matter of the disk
            if step == kill:
                die()
            assert run.report is not None
            if untidy and step == run.report.step:
                rng.standard_normal(7)
            weights += rng.standard_normal(4)
            run.vars.count += 1
        assert run.report is not None
        end = f"{weights.tobytes().hex()} {run.vars.count} {rng.integers(2**60)}"
        (root / "end").write_text(f"{end}\n{run.report.step}\n{run.report.tier.value}")

    return in_child(body)


def ends(root: Path, **options: object) -> tuple[str, str, str]:
    assert script(root, **options) == 0  # type: ignore[arg-type]
    end, step, tier = (root / "end").read_text().splitlines()
    return end, step, tier


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run that was killed at step 37, and whose newest checkpoint is damaged."""
    root = tmp_path / "killed"
    root.mkdir()
    assert script(root, kill=37) == -signal.SIGKILL
    newest = Repository.open(root / "runs", "run").commits()[0]
    assert newest.step == 30
    for document in (root / "runs/run" / newest.directory).glob("*.json"):
        data = bytearray(document.read_bytes())
        data[len(data) // 2] ^= 1
        document.write_bytes(bytes(data))
    return root


@pytest.fixture
def undisturbed(tmp_path: Path) -> str:
    root = tmp_path / "undisturbed"
    root.mkdir()
    return ends(root)[0]


def test_a_trial_changes_nothing(killed: Path, undisturbed: str) -> None:
    assert ends(killed, trial="accepts") == (undisturbed, "20", "older")


def test_the_same_left_in_the_training_changes_its_end(killed: Path, undisturbed: str) -> None:
    end, step, _ = ends(killed, untidy=True)
    assert step == "20"
    assert end != undisturbed


def test_the_one_before_the_rejected_one_is_taken(killed: Path, undisturbed: str) -> None:
    assert ends(killed, trial="rejects the first") == (undisturbed, "10", "older")


def test_what_is_no_function_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="is a function"):
        run.warm_up(3)  # type: ignore[arg-type]


def test_it_comes_before_the_loop(tmp_path: Path) -> None:
    run = Run(tmp_path, quiet=True)
    run.track(weights=np.zeros(3))
    for _ in run.steps(1):
        with pytest.raises(ConfigError, match="before the loop"):
            run.warm_up(lambda: None)
