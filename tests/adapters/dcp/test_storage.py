"""torch.distributed.checkpoint over our store, for real: ranks in processes of their own that meet over gloo."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.dcp.ranks import ANY, run
from tests.adapters.dcp.storage_script import FIRST, SECOND
from tests.cli.command import unbroken
from unbroken.repo.repository import Repository

SCRIPT = "storage_script.py"
PARTS = ("0.weight", "0.bias", "2.weight", "2.bias")


@dataclass(frozen=True)
class Saved:
    """A run that two ranks have saved, and what each of them has seen."""

    folder: Path
    root: Path
    saw: list[dict[str, Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    root = folder / "sharded"
    return Saved(folder, root, [end.said for end in run(folder, SCRIPT, "save", root)])


def opened(saved: Saved) -> Repository:
    return Repository.open(saved.root, "sharded")


def test_every_rank_writes_its_own_shards_and_what_is_unchanged_is_not_written_again(saved: Saved) -> None:
    repository = opened(saved)
    first, newest = repository.commits()[-1], repository.commits()[0]
    assert (first.step, newest.step) == (FIRST, SECOND)
    shards = [65 * 64 * 4, 64 * 64 * 4]  # rows of the first layer, of which each rank has about a half
    for rank in (0, 1):
        written = saved.saw[rank]["own blobs"]
        assert written.count(shards[rank]) == 3  # the weight and its two moments; no rank has the other's
        assert shards[1 - rank] not in written
    # The buffer that no step changes is in both checkpoints, and in one pack.
    frozen = 5000 * 4
    assert sum(saved.saw[rank]["own blobs"].count(frozen) for rank in (0, 1)) == 1
    old, new = (set(repository.manifest(commit).blobs.items()) for commit in (first, newest))
    assert [size for _, size in old & new] == [frozen]
    repository.verify(newest)  # reads the indexes
    packs = repository._index.packs.values()
    assert sum(entry.raw == frozen for found in packs for entry in found.entries) == 1


def test_the_run_is_one_like_any_other(saved: Saved) -> None:
    listed = unbroken("ls", saved.root, "--json", cwd=saved.folder).json
    (found,) = listed["runs"]
    assert [c["commit"]["step"] for c in found["checkpoints"]] == [SECOND, 6, FIRST]
    assert found["checkpoints"][-1]["commit"]["metrics"] == {"loss": 0.5}
    assert unbroken("verify", saved.root, cwd=saved.folder).code == 0
    shown = unbroken("show", saved.root, "--component", "shards@rank1", cwd=saved.folder)
    assert shown.code == 0
    assert "model.0.weight" in shown.out
    assert opened(saved).manifest(opened(saved).commits()[0]).opaque == []  # not a single pickle
    assert list(saved.root.rglob("*.metadata")) == []


def test_a_failed_save_reaches_every_rank_and_leaves_nothing(saved: Saved) -> None:
    for saw in saved.saw:
        assert saw["failed"] == "[1] OSError: rank 1 has had enough"
        assert saw["no step"].startswith("[0, 1] ConfigError: The checkpoint has no step.")
        assert "Rank 1 finds at" in saw["elsewhere"]
        assert "another run than the coordinator. Give all ranks one root" in saw["elsewhere"]
        assert "Leave out enable_plan_caching." in saw["cached"]
    kept = {commit.directory for commit in opened(saved).commits()}
    assert {f"steps/{path.name}" for path in (saved.root / "sharded" / "steps").iterdir()} == kept


def test_two_ranks_go_on_exactly(saved: Saved) -> None:
    assert saved.saw[0] == saved.saw[1] | {"own blobs": saved.saw[0]["own blobs"]}
    for rank, end in enumerate(run(saved.folder, SCRIPT, "load", saved.root)):
        saw = end.said
        assert saw["first"] == saved.saw[0]["first"]
        assert saw["second"] == saved.saw[0]["at the time of the save"]
        assert saw["end"] == saved.saw[0]["end"]
        # The save in the background holds what was when it began, and not what training made of it meanwhile.
        assert saw["newest"] == saved.saw[0]["at the time of the save"]
        assert saw["own"] == [[float(rank)] * 3, f"rank {rank}", [f"@rank{rank}"]]
        assert saw["warned"] == []


def test_one_rank_and_a_plain_process_go_on_exactly_and_two_go_on_from_one(saved: Saved) -> None:
    (end,) = run(saved.folder, SCRIPT, "alone", saved.root, size=1)
    saw, undisturbed = end.said, saved.saw[0]
    assert [saw["first"], saw["plain"]["first"]] == [undisturbed["first"]] * 2
    assert [saw["end"], saw["plain"]["end"]] == [undisturbed["end"]] * 2
    # Of what ranks had for themselves, nobody takes what is not its own unless it says so.
    assert saw["own"] == [[0.0] * 3, "rank 0", ["@rank0"]]
    (warned,) = saw["warned"]
    assert "has states of ranks that are not there any more: @rank1." in warned
    assert saw["adopted"]["own"] == [[1.0] * 3, "rank 1"]
    # And the other way round: the plain process has saved what it loaded.
    for rank, end in enumerate(run(saved.folder, SCRIPT, "load", f"{saved.root}-whole")):
        saw = end.said
        assert [saw["first"], saw["end"]] == [undisturbed["first"], undisturbed["end"]]
        assert saw["own"] == [[9.0] * 3, "rank 9", []]
        (warned,) = saw["warned"]
        assert warned.startswith(f"Rank {rank} has no state of its own in the checkpoint of step {FIRST}")


def test_a_rank_that_is_killed_in_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    root = tmp_path / "killed"
    ends = run(tmp_path, SCRIPT, "kill", root, expect=[ANY, -signal.SIGKILL])
    assert [json.loads(end.out) for end in ends] == [{"first": "saved"}] * 2
    assert ends[0].code != 0
    repository = Repository.open(root, "killed")
    (only,) = repository.commits()
    assert only.step == FIRST
    assert repository.verify(only) == []
    assert len(list((root / "killed" / "steps").iterdir())) == 2  # rank 0 had written its part
    for end in run(tmp_path, SCRIPT, "again", root):
        assert end.said["newest"] == FIRST
    assert [commit.step for commit in repository.commits()] == [SECOND, FIRST]
    assert len(list((root / "killed" / "steps").iterdir())) == 2  # what was half is swept
    assert all(repository.verify(commit) == [] for commit in repository.commits())


def test_pickles_need_trust_and_damage_on_one_rank_stops_all_before_anything_is_touched(
    tmp_path: Path,
) -> None:
    root = tmp_path / "harmed"
    for rank, end in enumerate(run(tmp_path, SCRIPT, "damage", root)):
        saw = end.said
        assert saw["with the key"] == saw["trusted"] == 3
        assert re.match(
            r"\[0, 1\] Untrusted: The checkpoint of step 1 has pickled parts that are signed with the key \w+, which is"
            r" not held here: settings\.",
            saw["with another key"],
        )
        assert saw["without the object"] == ""
        assert "holds no checkpoint of step 4. It has: 1." in saw["of another step"]
        assert saw["damaged"].startswith("[1] CorruptObject")
        assert saw["untouched"] is True
        assert ("Can only be pickled: shards/settings" in end.err) == (rank == 0)
    assert Repository.open(root, "harmed").commits()[0].step == 1
