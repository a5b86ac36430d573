"""An engine whose `state_dict` differs from rank to rank, through the coordinator."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.dcp.engine_script import SHARD
from tests.adapters.dcp.ranks import run
from unbroken.repo.repository import Repository

SCRIPT = "engine_script.py"


def test_every_shard_is_written_by_its_rank_and_comes_back_to_it(tmp_path: Path) -> None:
    root = tmp_path / "run"
    ended = [end.said for end in run(tmp_path, SCRIPT, root, 3)]
    repository = Repository.open(root, "run")
    commit = repository.commits()[0]
    assert repository.verify(commit) == []
    packs = [found.entries for found in repository._index.packs.values()]
    holding: list[set[int]] = []
    for rank in (0, 1):
        size = 4 * (SHARD + 1000 * rank)
        blobs = repository.document(commit, f"training_state@rank{rank}").blobs
        (ref,) = (ref for ref in blobs if ref.size == size)
        mine = {i: [e for e in entries if e.digest in ref.chunks] for i, entries in enumerate(packs)}
        holding.append({i for i, entries in mine.items() if entries})
        assert sum(entry.raw for entries in mine.values() for entry in entries) == size
    assert holding[0].isdisjoint(holding[1])  # each rank has written its own bytes, and nobody else's
    again = [end.said for end in run(tmp_path, SCRIPT, root, 5)]
    assert [said["first"] for said in again] == [3, 3]
    assert [said["began"] for said in again] == [said["ended"] for said in ended]
    assert again[0]["ended"] != again[1]["ended"]
