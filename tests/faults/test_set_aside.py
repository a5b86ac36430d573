"""What a new beginning sets aside where several ranks train, and where the run lies in a bucket.

Each start is processes of their own, killed or brought to their end. A part of one rank is damaged in every
checkpoint: none can be used, and the weights in them can still be read.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import Ended, finish, go, results
from tests.store.servers import SeaweedFS, Server
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of
from unbroken.store.base import ByteStore

PROJECT = Path(__file__).parents[2]
WEIGHTS, LOST = "training_state", "replay_buffer@rank1"
DIRECTORY_AND_BUCKET = ["directory", pytest.param("bucket", marks=pytest.mark.exactness)]


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    server.stop()


def bytes_of(snapshot: Any) -> bytes:
    return b"".join(bytes(blob.data) for each in snapshot.components.values() for blob in each.blobs)


@dataclass(frozen=True)
class Place:
    """Where the run lies, and what its checkpoints are made of. `own` is where its ranks leave what they held."""

    url: str
    own: Path

    @property
    def repository(self) -> Repository:
        return Repository.open(self.url, "run")

    @property
    def store(self) -> ByteStore:
        return root_of(self.url).store("run")

    @property
    def steps(self) -> list[int]:
        return [commit.step for commit in self.repository.commits()]

    def flip(self, key: str, *, every: int = 0) -> None:
        """Turn a bit in the middle of an object, or one in so many bytes of it."""
        data = bytearray(self.store.get(key))
        for at in range(every, len(data), every) if every else [len(data) // 2]:
            data[at] ^= 1
        self.store.put(key, bytes(data))

    def harm(self, document: str) -> None:
        """Damage this document of each checkpoint."""
        for commit in self.repository.commits():
            self.flip(f"{commit.directory.rstrip('/')}/{document}.json")

    def readable(self, component: str) -> dict[int, bytes]:
        """Return what can be read of a component, by sequence."""
        run = self.repository
        return {commit.sequence: bytes_of(run.load(commit, [component])) for commit in run.commits()}

    def start(self, **options: Any) -> list[Ended]:
        """Start two ranks; rank 1 is killed at the step `die`, and rank 0 then."""
        die = options.pop("die")
        told = {"UNBROKEN_ROOT": self.url, "UNBROKEN_WORST_TIER": "fresh"}
        return go(self.own, 2, of={1: {"die": die}}, environment=told, wait=True, **options)

    def end(self, **options: Any) -> list[Ended]:
        """Start two ranks that come to the end of their training."""
        told = {"UNBROKEN_ROOT": self.url, "UNBROKEN_WORST_TIER": "fresh"}
        return finish(self.own, 2, environment=told, wait=True, **options)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    own = tmp_path / "run"
    if getattr(request, "param", "directory") == "directory":
        return Place(str(own), own)
    server: Server = request.getfixturevalue("seaweedfs")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return Place(f"{server.place()}/run", own)


@pytest.mark.parametrize("place", DIRECTORY_AND_BUCKET, indirect=True)
def test_what_ranks_set_aside_outlives_every_later_start_and_the_new_beginning_is_exact(
    place: Place, tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    finish(undisturbed, 2, total=30)
    place.start(die=27, keep_last=4)
    old, held = place.steps, place.readable(WEIGHTS)
    assert old[:4] == [25, 20, 15, 10]
    place.harm(LOST)
    place.start(die=17, keep_last=2)
    assert place.steps[-len(old) :] == old
    assert place.steps[: -len(old)][:2] == [15, 10]
    ended = place.end(keep_last=2, total=30)
    assert [(one.start["start"], one.start["tier"]) for one in ended] == [(15, "newest")] * 2
    assert place.steps == [30, 25, *old], "as many as keep_last says, and those beside them"
    assert held.items() <= place.readable(WEIGHTS).items()
    run = place.repository
    assert [run.verify(commit) for commit in run.commits()[:2]] == [[], []]
    assert [results(place.own, rank) for rank in range(2)] == [
        results(undisturbed, rank) for rank in range(2)
    ]


@pytest.mark.parametrize("place", DIRECTORY_AND_BUCKET, indirect=True)
def test_no_rank_builds_on_an_array_of_what_was_set_aside(place: Place) -> None:
    """The same script with the same seed makes the same arrays again."""
    large = {"length": 20_000, "rows": 20_000}
    place.start(die=17, keep_last=4, **large)
    old = place.steps
    for key in place.store.list("packs"):
        if key.endswith(".pack"):
            place.flip(key, every=64)
    harmed = place.repository
    assert [commit.step for commit in harmed.commits() if harmed.verify(commit)][:3] == [15, 10, 5]
    ended = place.start(die=17, keep_last=4, **large)
    assert [one.start["tier"] for one in ended] == ["fresh"] * 2
    run = place.repository
    new = run.commits()[: -len(old)]
    assert [commit.step for commit in new][:3] == [15, 10, 5]
    assert [run.verify(commit) for commit in new] == [[]] * len(new)


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_a_run_in_a_bucket_keeps_what_one_process_has_set_aside(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_KEEP_LAST", "2")
    alone(place, 30)
    old, held = place.steps, place.readable("policy_weights")
    assert old == [30, 20]
    place.harm("training_state")
    monkeypatch.setenv("UNBROKEN_WORST_TIER", "fresh")
    assert alone(place, 60) == "0"
    assert place.steps == [60, 50, *old]
    assert alone(place, 90) == "60"
    assert place.steps == [90, 80, *old]
    assert held.items() <= place.readable("policy_weights").items()
    now = place.repository
    assert [now.verify(commit) for commit in now.commits()[:2]] == [[], []]


def alone(place: Place, steps: int) -> str:
    """Train in a process of its own; return the step it went on from."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.store.object_script", place.url, str(steps)],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.partition("\t")[0]
