"""Copies between a directory and a bucket, both ways, through the command; and what lies there is pruned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import unbroken
from tests.engine.runs import run_and_abandon
from tests.engine.training import Training, source_of, train, undisturbed
from tests.repo.states import meta, noise, same, snapshot
from tests.store.servers import Server
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.repo.repository import Repository


def test_there_and_back_again(seaweedfs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    states = {step: snapshot(noise(50_000, step), noise(3_000_000, 9), step=step) for step in (1, 2, 3)}
    source = Repository.open(tmp_path / "source", "job", create=True)
    with source.writer() as writer:
        for step, state in states.items():
            writer.write(state, meta(step))
    bucket = f"{seaweedfs.place()}/copies"
    assert unbroken("copy", "source", bucket, "--all", cwd=tmp_path).code == 0
    there = Repository.open(bucket, "job")
    assert [commit.step for commit in there.commits()] == [3, 2, 1]
    assert all(there.verify(commit) == [] for commit in there.commits())
    (cost,) = unbroken("du", bucket, "--json", cwd=tmp_path).json["runs"]
    assert 3_150_000 < cost["on_disk"] < 3_250_000
    assert unbroken("prune", bucket, "--keep-last", 2, cwd=tmp_path).code == 0
    assert [commit.step for commit in there.commits()] == [3, 2]
    (cost,) = unbroken("du", bucket, "--json", cwd=tmp_path).json["runs"]
    assert cost["on_disk"] < 3_200_000
    assert unbroken("copy", f"{bucket}/job@2", "back", cwd=tmp_path).code == 0
    back = Repository.open(tmp_path / "back", "job")
    (commit,) = back.commits()
    assert same(back.load(commit), states[2])


def engine_at(place: Path | str, training: Training) -> CheckpointEngine:
    settings = Settings(root=place, job="run", every=Every(steps=10), keep_last=2)
    return CheckpointEngine(source_of(training), settings, environment={})


def test_a_training_goes_on_over_a_copy_as_over_the_run(
    seaweedfs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: what it commits there, and what it clears away, goes by the rule of a directory. Without the copies it begins anew."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    run_and_abandon(tmp_path / "source")
    bucket = f"{seaweedfs.place()}/over"
    assert unbroken("copy", "source", bucket, "--all", cwd=tmp_path).code == 0
    there = Repository.open(bucket, "run")
    copied = {commit.directory for commit in there.commits()}
    assert len(copied) >= 3
    training = Training(seed=99)
    engine = engine_at(bucket, training)
    assert engine.resume().step == 30
    assert copied <= {commit.directory for commit in there.commits()}
    assert all(there.verify(commit) == [] for commit in there.commits())
    train(engine, training, start=30, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)
    assert [commit.step for commit in there.commits()][:2] == [50, 40]
    assert all(there.verify(commit) == [] for commit in there.commits())
    assert unbroken("copy", bucket, "back", "--all", cwd=tmp_path).code == 0
    back = Training(seed=99)
    engine = engine_at(tmp_path / "back", back)
    assert engine.resume().step == 50
    train(engine, back, start=50, until=60)
    engine.close()
    assert back.digest() == undisturbed(60)
    cold = Training()
    engine = engine_at(f"{seaweedfs.place()}/nothing", cold)
    assert engine.resume().step == 0
    train(engine, cold, start=30, until=60)
    engine.close()
    assert cold.digest() != undisturbed(60)
