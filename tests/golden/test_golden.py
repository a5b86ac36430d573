"""Runs written by every released version are read for ever; the present one is written byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from unbroken.format.wire import FORMAT_VERSION
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Component, Snapshot

from . import make

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*") if path.is_dir())


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def same(a: Snapshot, b: Snapshot) -> bool:
    return a.components.keys() == b.components.keys() and all(
        a.components[name].roots == part.roots
        and a.components[name].tensors == part.tensors
        and contents(a.components[name]) == contents(part)
        for name, part in b.components.items()
    )


def contents(component: Component) -> list[bytes]:
    return [component.content(i).tobytes() for i in range(len(component.blobs))]


def test_the_present_version_is_there() -> None:
    assert f"v{FORMAT_VERSION}" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_run_is_restored(version: str) -> None:
    repository = Repository.open(HERE / version, make.JOB)
    commits = repository.commits()
    assert [(commit.sequence, commit.step, commit.epoch) for commit in commits] == [
        (4, 300, 2),
        (3, 200, 1),
        (1, 0, 1),
    ]
    for commit in commits:
        assert repository.verify(commit) == []
        expected = make.with_a_pickle(300) if commit.step == 300 else make.state(commit.step or 1)
        loaded = repository.load(commit)
        assert same(loaded, expected)
        assert loaded.promises == expected.promises
        assert loaded.counters == expected.counters
    rings = [repository.document(commit, "replay_buffer").blobs for commit in commits]
    assert {(ref.chunk, ref.count, ref.tree is not None) for refs in rings for ref in refs} == {
        (make.RING_CHUNK, 20, True),
        (make.RING_CHUNK, 320, True),
    }
    assert repository.broken() == []
    assert repository.signature_valid(commits[0], key=make.KEY) is True
    assert repository.signature_valid(commits[1], key=make.KEY) is None
    for commit in commits:
        birth = repository.birth(commit)
        assert birth is not None
        assert same(birth, make.skeleton())
    workers = repository.workers()
    assert workers is not None
    assert (workers.trainer.pid, [worker.pid for worker in workers.workers]) == (4242, [4243])
    pending = repository.pending()
    assert pending is not None
    assert (pending.step, pending.reason) == (400, "SIGTERM")
    assert [record.tier for record in repository.history()] == ["fresh"]
    assert [record.epoch for record in repository.history()] == [1]


@pytest.mark.parametrize("version", VERSIONS)
def test_training_goes_on_in_a_golden_run(version: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / version, tmp_path / "root")
    repository = Repository.open(tmp_path / "root", make.JOB)
    before = repository.commits()
    with repository.writer(signing_key=lambda: make.KEY) as writer:
        assert [commit.sequence for commit in repository.commits()] == [commit.sequence for commit in before]
        commit = writer.write(make.state(7), repository.meta(before[0]))
    assert commit.sequence > before[0].sequence
    assert same(repository.load(commit), make.state(7))


def test_what_is_written_today_is_the_golden_run(tmp_path: Path) -> None:
    make.make(tmp_path)
    found, golden = files(tmp_path), files(HERE / f"v{FORMAT_VERSION}")
    assert sorted(found) == sorted(golden), "make it anew: python tests/golden/make.py"
    for name in golden:
        if name.endswith((".pack", ".idx")):
            continue  # the bytes of a compressor may differ between its versions; the test above reads them
        assert found[name] == golden[name], f"{name} is written differently: python tests/golden/make.py"
