"""Runs on disk as a killed process leaves them, and damage to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.engine.training import Training, engine_of, train
from unbroken.engine.engine import CheckpointEngine
from unbroken.repo.repository import Repository


def abandon(engine: CheckpointEngine) -> None:
    """Leave the run as a killed process would, but for the lock, which this process still needs."""
    engine.wait()
    engine._release(note=False)


def repository(root: Path) -> Repository:
    return Repository.open(root, "run")


def steps_of(root: Path) -> list[int]:
    return [commit.step for commit in repository(root).commits()]


def flip_newest(root: Path, *, count: int = 1) -> None:
    for commit in repository(root).commits()[:count]:
        victim = root / "run" / commit.directory / "policy_weights.json"
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(bytes(data))


def run_and_abandon(root: Path, until: int = 37) -> None:
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    train(engine, training, start=0, until=until)
    abandon(engine)


def break_store(root: Path) -> Callable[[], None]:
    """Make every later write of a checkpoint fail; returns the repair. A file where a directory was."""
    steps, aside = root / "run" / "steps", root / "steps.aside"
    steps.rename(aside)
    steps.write_text("in the way")

    def repair() -> None:
        steps.unlink()
        aside.rename(steps)

    return repair
