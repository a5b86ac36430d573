"""The mirror of a run where several ranks train, and where one of the two places is a bucket of a real server.

The first place is lost, or a part of one rank in it is damaged: the ranks go on from the mirror, and end as if nothing had
happened.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import unbroken
from tests.engine.ranks import Ended, finish, go, results
from tests.store.servers import SeaweedFS, Server
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of

OWN = "replay_buffer@rank1"
PLACES = [
    ("directory", "bucket"),
    pytest.param(("bucket", "directory"), marks=pytest.mark.exactness),
    pytest.param(("bucket", "bucket"), marks=pytest.mark.exactness),
]


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """What two ranks hold at the end of a training that nothing has happened to."""
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(root, 2, total=30)
    return [results(root, rank) for rank in range(2)]


@dataclass(frozen=True)
class Places:
    """Where the run lies, and its mirror. `own` is where its ranks leave what they held."""

    first: str
    second: str
    own: Path

    def lose(self) -> None:
        """Take away everything that lies in the first place."""
        store = root_of(self.first).store("run")
        for key in store.list():
            store.delete(key)
        shutil.rmtree(self.first, ignore_errors=True)

    def harm(self, document: str) -> None:
        """Turn a bit in this document of the newest checkpoint."""
        key = f"{repository(self.first).commits()[0].directory}/{document}.json"
        store = root_of(self.first).store("run")
        data = bytearray(store.get(key))
        data[len(data) // 2] ^= 1
        store.put(key, bytes(data))

    @property
    def told(self) -> dict[str, str]:
        return {"UNBROKEN_ROOT": self.first, "UNBROKEN_MIRROR": self.second}

    def end(self, total: int, **options: Any) -> list[Ended]:
        return finish(self.own, 2, total=total, wait=True, environment=self.told, **options)

    def kill(self, step: int) -> None:
        go(self.own, 2, of={1: {"die": step}}, wait=True, environment=self.told)

    @property
    def ends(self) -> list[dict[str, bytes]]:
        return [results(self.own, rank) for rank in range(2)]


def repository(place: str) -> Repository:
    return Repository.open(place, "run")


def assert_whole(place: str) -> None:
    there = repository(place)
    assert [there.verify(commit) for commit in there.commits()] == [[] for _ in there.commits()]
    assert there.broken() == []


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    server: Server = request.getfixturevalue("seaweedfs")
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    first, second = (
        str(tmp_path / f"place{number}" / "run") if kind == "directory" else f"{server.place()}/run"
        for number, kind in enumerate(request.param)
    )
    return Places(first, second, tmp_path / "run")


@pytest.mark.parametrize("places", PLACES, indirect=True, ids="{0[0]} and {0[1]}".format)
def test_ranks_whose_first_place_is_lost_twice_go_on_from_the_mirror_as_if_nothing_had_been(
    places: Places, undisturbed: list[dict[str, bytes]]
) -> None:
    places.end(15, keep_last=2)
    assert repository(places.second).commits()[0].step == 15
    assert_whole(places.second)
    places.lose()
    places.kill(27)
    places.lose()
    newest = repository(places.second).commits()[0].step
    assert newest in (15, 20, 25), "the mirror follows the training, and the kill has met it anywhere"
    for one in places.end(30):
        assert (one.start["start"], one.start["tier"]) == (newest, "newest")
    assert places.ends == undisturbed
    assert repository(places.first).history()[0].fault == "hard"
    for place in (places.first, places.second):
        assert_whole(place)
        assert repository(place).commits()[0].position == "end"


@pytest.mark.parametrize("places", PLACES, indirect=True, ids="{0[0]} and {0[1]}".format)
def test_a_damaged_part_of_one_rank_comes_back_from_the_mirror_before_an_older_checkpoint_is_taken(
    places: Places, undisturbed: list[dict[str, bytes]]
) -> None:
    places.end(15)
    places.harm(OWN)
    for one in places.end(30):
        assert (one.start["start"], one.start["tier"]) == (15, "newest")
    line = next(line for line in repository(places.first).history()[::-1] if line.event == "start")
    assert line.fault == "data"
    assert any(f"from the mirror {places.second}/run: step 15" in reason for reason in line.reasons)
    assert places.ends == undisturbed
    assert_whole(places.first)


@pytest.mark.parametrize("places", [("directory", "bucket")], indirect=True, ids=[""])
def test_ranks_without_the_mirror_begin_again_where_their_first_place_is_lost(places: Places) -> None:
    places.end(15)
    places.lose()
    alone = {"UNBROKEN_ROOT": places.first}
    for one in finish(places.own, 2, total=15, environment=alone):
        assert (one.start["start"], one.start["tier"]) == (0, "fresh")


@pytest.mark.parametrize("places", [("directory", "bucket")], indirect=True, ids=[""])
def test_commands_read_a_mirror_in_a_bucket_as_any_run(places: Places, tmp_path: Path) -> None:
    places.end(15)
    where = f"{places.second}/run"
    assert unbroken("verify", where, cwd=tmp_path).code == 0
    places.lose()
    answer = unbroken("doctor", f"{places.first}/run", "--mirror", places.second, cwd=tmp_path)
    assert answer.code == 0
    assert "at step 15" in answer.out
    assert unbroken("copy", where, tmp_path / "copied", cwd=tmp_path).code == 0
    (copied,) = json.loads(unbroken("ls", tmp_path / "copied", "--json", cwd=tmp_path).out)["runs"]
    assert copied["checkpoints"][0]["commit"]["step"] == 15
