"""Several processes train one run: killed, stopped and started again for real, compared byte for byte."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import unbroken
from tests.engine.ranks import (
    Launch,
    assert_whole,
    differing,
    finish,
    go,
    repository,
    results,
    steps_of,
)
from tests.repo.states import assert_swept
from unbroken.format import layout


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(root, 2)
    return root


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that was killed at step 18, has checkpoints of 15, 10 and 5, and was not started again."""
    root = tmp_path_factory.mktemp("killed") / "run"
    go(root, 2, of={0: {"die": 18}}, wait=True)
    assert steps_of(root) == [15, 10, 5]
    return root


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    root = tmp_path / "run"
    shutil.copytree(killed, root)
    return root


def assert_same(root: Path, other: Path, *, size: int = 2) -> None:
    assert differing(root, other) == []
    for rank in range(size):
        assert results(root, rank) == results(other, rank)


def damage(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


# Killed


def test_whichever_rank_is_killed_the_run_ends_as_if_it_had_never_stopped(
    undisturbed: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    go(root, 2, of={1: {"die": 4}})
    ended = go(root, 2, of={0: {"die": 13}})
    assert ended[0].start["start"] == 0
    ended = go(root, 2, of={1: {"die": 26}}, wait=True)
    assert [one.start["start"] for one in ended] in ([10, 10], [5, 5])  # one of 10 may have been under way
    ended = finish(root, 2)
    assert [one.start["start"] for one in ended] == [25, 25]
    assert [one.start["changes"] for one in ended] == [[], []]
    assert_same(root, undisturbed)
    assert_whole(root)


@pytest.mark.parametrize(
    ("part", "own"),
    [
        ("buffer", "rows"),
        ("generator", "own"),
        ("numpy", "numpy"),
        ("python", "python"),
        ("momentum", ""),
        ("shared", ""),
        ("vars", ""),
        ("weights", ""),
    ],
)
def test_a_part_that_is_left_cold_shows(copy: Path, undisturbed: Path, part: str, own: str) -> None:
    """`own` is where what one rank alone has for itself shows; else the part is left cold on all ranks."""
    finish(copy, 2, of={rank: {"cold": part} for rank in ([1] if own else [0, 1])})
    place = own or {"vars": "seen"}.get(part, part)
    for rank in range(2):
        found, expected = results(copy, rank), results(undisturbed, rank)
        if own and rank == 0:
            assert found == expected
        else:
            assert found[place] != expected[place]


@pytest.mark.exactness
@pytest.mark.parametrize("size", [2, 3, 4])
def test_killed_at_many_random_steps(tmp_path: Path, size: int) -> None:
    finish(tmp_path / "straight", size, total=60)
    root, draw = tmp_path / "run", random.Random(size)
    for step in sorted(draw.sample(range(60), 8)):
        go(root, size, of={draw.randrange(size): {"die": step}}, total=60)
    finish(root, size, total=60)
    assert_same(root, tmp_path / "straight", size=size)
    assert_whole(root)


def test_a_rank_that_dies_is_named_by_the_others_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    root, hurry = tmp_path / "run", tmp_path / "hurry"
    with Launch() as launch:
        own: list[dict[str, Any]] = [{"hurry": str(hurry)}, {"tells": r"saves/\d*3/000001\.json"}, {"die": 7}]
        for rank in range(3):
            launch.start(root, rank, 3, wait=True, **own[rank])
        assert launch.end(2).status == -9
        launch.line_of(1, "written")  # it has done its part of step 10
        hurry.touch()
        first, second = launch.end(0), launch.end(1)
    assert (first.error["error"], first.error["ranks"]) == ("SaveFailed", [])
    assert "rank 2 said nothing for 60 seconds" in first.error["message"]
    assert "rank 2" in second.error["message"]  # it hears it from rank 0, and does not have to find out
    assert steps_of(root) == [5, 0]
    assert_whole(root)


# Stopped


@pytest.mark.parametrize(
    ("stopped", "key", "names"),
    [
        (1, r"saves/\d+/000001\.json", "rank 1 said nothing"),  # has written all, but not its record
        (0, r"^commits/", "Rank 0 did not say"),  # has all records, and has not committed
    ],
)
def test_a_rank_that_stops_fails_the_save_in_time_and_the_next_one_works(
    tmp_path: Path, undisturbed: Path, stopped: int, key: str, names: str
) -> None:
    root, hurry = tmp_path / "run", tmp_path / "hurry"
    with Launch() as launch:
        for rank in range(2):
            own: dict[str, Any] = (
                {"stop": key, "stop_number": 3} if rank == stopped else {"hurry": str(hurry)}
            )
            launch.start(root, rank, 2, goes_on=True, wait=True, keep_last=9, **own)
        launch.stopped(stopped)  # at step 10
        hurry.touch()
        # The other gives up this save in time, and says so before it waits at the next one.
        other = 1 - stopped
        line = launch.line_of(other, "error")
        assert names in line["message"]
        assert steps_of(root) == [5, 0]
        assert_whole(root)
        launch.go_on(stopped)
        ended = {rank: launch.end(rank) for rank in range(2)}
    assert [ended[rank].status for rank in range(2)] == [0, 0], ended
    assert bool(ended[stopped].errors) is (stopped == 1)  # rank 0 has only been slow
    assert {30, 25, 20, 15} <= set(steps_of(root))
    assert_whole(root)
    assert_same(root, undisturbed)


# Replicas


def test_replicas_that_differ_in_one_bit_stop_every_rank_and_it_says_where_and_by_how_much(
    tmp_path: Path,
) -> None:
    for length in (6, 5000):  # within a document, and in a chunk of its own
        root = tmp_path / f"run{length}"
        ended = go(root, 3, of={2: {"drift": 7}}, length=length)
        for one in ended:
            assert one.status == 3
            assert one.error["error"] == "ReplicasDiffer"
            assert "rank 2: training_state: weights: " in one.error["message"]
            [line] = one.error["differences"]
            assert 0 < float(line.partition("by up to ")[2].rstrip(")")) < 1e-13
        assert steps_of(root) == [5, 0]
        assert_whole(root)


def test_a_component_that_one_rank_lacks_is_named(tmp_path: Path) -> None:
    root = tmp_path / "run"
    ended = go(root, 2, of={1: {"lacks": True}}, replicated=["training_state", "replay_buffer"])
    for one in ended:
        assert "replicated names 'replay_buffer', and rank 1 has no such component" in one.error["message"]
    assert steps_of(root) == []
    assert repository(root).broken() == []


def test_a_rank_with_another_shape_is_named(tmp_path: Path) -> None:
    root = tmp_path / "run"
    ended = go(root, 2, of={1: {"length": 7}})
    for one in ended:
        assert "rank 1: training_state: " in one.error["message"]
        assert "weights: <f8[6] → <f8[7]" in one.error["message"]
    assert steps_of(root) == []


# From where to go on


def test_a_damaged_part_of_one_rank_sends_all_to_the_same_older_checkpoint(
    tmp_path: Path, undisturbed: Path
) -> None:
    root = tmp_path / "run"
    go(root, 3, of={0: {"die": 23}}, wait=True)
    finish(tmp_path / "straight", 3)
    newest, second, third = repository(root).commits()
    damage(root / "run" / newest.directory / "rng_states@rank2.json")
    damage(root / "run" / second.directory / "rng_states@rank1.json")
    ended = finish(root, 3)
    assert [one.start["start"] for one in ended] == [third.step] * 3 == [10] * 3
    assert [one.start["tier"] for one in ended] == ["older"] * 3
    assert_same(root, tmp_path / "straight", size=3)


def test_where_no_checkpoint_is_whole_all_ranks_stop(copy: Path) -> None:
    for commit in repository(copy).commits():
        damage(copy / "run" / commit.directory / "rng_states@rank1.json")
    ended = go(copy, 2)
    assert [one.error["error"] for one in ended] == ["NoUsableCheckpoint"] * 2
    assert "rank 1" in ended[0].error["message"]


def test_ranks_that_have_changed_places_find_their_parts(tmp_path: Path, undisturbed: Path) -> None:
    """Each node has a home of its own, with what it has noted there; the ranks come back with their numbers swapped."""
    root = tmp_path / "run"
    for number, status in ((0, -9), (1, 0)):
        with Launch() as launch:
            for rank in range(2):
                node = str(tmp_path / f"node{(rank + number) % 2}")
                launch.start(
                    root, rank, 2, wait=True, die=18 if status and rank == 0 else -1,
                    environment={"HOME": node, "XDG_STATE_HOME": node},
                )  # fmt: skip
            first = launch.end(0)
            assert first.status == status
            if status:
                launch.kill(1)
            second = launch.end(1)
            if not status:
                assert [first.start["start"], second.start["start"]] == [15, 15]
    assert_same(root, undisturbed)


def test_the_newest_checkpoints_removed_by_hand_are_not_missed(copy: Path, undisturbed: Path) -> None:
    for commit in repository(copy).commits()[:2]:
        (copy / "run" / layout.commit(commit.sequence)).unlink()
        shutil.rmtree(copy / "run" / commit.directory)
    ended = finish(copy, 2)
    assert [one.start["start"] for one in ended] == [5, 5]
    assert_same(copy, undisturbed)
    assert len(steps_of(copy)) == 3
    assert_whole(copy)


def test_parts_of_two_checkpoints_do_not_go_together(copy: Path) -> None:
    newest, second, _ = repository(copy).commits()
    part = "replay_buffer@rank1.json"
    shutil.copy(copy / "run" / second.directory / part, copy / "run" / newest.directory / part)
    ended = finish(copy, 2)
    assert [one.start["start"] for one in ended] == [second.step] * 2


def test_a_copy_of_the_run_goes_on_as_the_run_does(copy: Path, undisturbed: Path, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere" / "run"
    assert unbroken("copy", copy, root, cwd=tmp_path).code == 0
    ended = finish(root, 2)
    assert [(one.start["start"], one.start["changes"]) for one in ended] == [(15, [])] * 2
    assert_same(root, undisturbed)


def test_a_finished_run_is_started_again_on_all_ranks(undisturbed: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(undisturbed, root)
    ended = finish(root, 2)
    assert [(one.start["start"], one.start["finished"]) for one in ended] == [(30, True)] * 2
    assert_same(root, undisturbed)


def test_several_loops_of_one_script(tmp_path: Path) -> None:
    straight, root = tmp_path / "straight", tmp_path / "run"
    finish(straight, 2, total=10, further=22)
    go(root, 2, of={1: {"die": 7}}, total=10, further=22)
    go(root, 2, of={0: {"die": 18}}, total=10, further=22)
    finish(root, 2, total=10, further=22)
    assert_same(root, straight)


# Another number of ranks, and other settings


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (2, 1),
        (1, 2),
        pytest.param(2, 3, marks=pytest.mark.exactness),
        pytest.param(3, 2, marks=pytest.mark.exactness),
    ],
)
def test_another_number_of_ranks_goes_on_with_what_there_is_and_says_so(
    tmp_path: Path, before: int, after: int
) -> None:
    root = tmp_path / "run"
    go(root, before, of={0: {"die": 18}}, wait=True)
    refused = go(root, after, strict=True)
    assert [one.error["error"] for one in refused].count("StateMismatch") >= 1
    assert {one.error["error"] for one in refused} <= {"StateMismatch", "NoUsableCheckpoint"}
    assert f"the number of ranks was {before} and is {after}" in refused[0].error["message"]
    ended = finish(root, after)
    for one in ended:
        assert one.start["start"] == 15
        assert f"the number of ranks was {before} and is {after}" in one.start["changes"][0]
        assert set(one.start["promises"].values()) == {"approximate"}
    again = finish(root, after, total=40)
    assert [one.start["changes"] for one in again] == [[]] * after
    assert_whole(root)
    states = [results(root, rank) for rank in range(after)]
    assert len({state["weights"] for state in states}) == 1
    assert len({state["own"] for state in states}) == after


def test_settings_that_were_changed_on_all_ranks_are_told_from_what_each_was_born_with(copy: Path) -> None:
    ended = finish(copy, 2, rate=0.25)
    for one in ended:
        assert any("rate" in line for line in one.start["changes"]), one.start
    # They are live now, and a checkpoint knows them as its own.
    again = finish(copy, 2, rate=0.25, total=40)
    assert [one.start["changes"] for one in again] == [[], []]


def test_strict_refuses_changed_settings_on_all_ranks(copy: Path) -> None:
    ended = go(copy, 2, rate=0.25, strict=True)
    assert [one.status for one in ended] == [3, 3]
    assert "rate" in ended[0].error["message"]
    assert steps_of(copy) == [15, 10, 5]


def test_a_setting_that_was_changed_on_one_rank_alone_shows_at_the_first_save(copy: Path) -> None:
    ended = go(copy, 2, of={1: {"rate": 0.25}})
    for one in ended:
        assert "rank 1: training_state: optimizer/rate" in one.error["message"], one
    assert steps_of(copy) == [15, 10, 5]


# Starts


def test_ranks_may_come_in_any_order(tmp_path: Path, undisturbed: Path) -> None:
    root = tmp_path / "run"
    with Launch() as launch:
        launch.start(root, 1, 2)
        launch.line_of(1, "here")
        launch.start(root, 0, 2)
        assert [launch.end(rank).status for rank in range(2)] == [0, 0]
    assert_same(root, undisturbed)


def test_where_rank_0_does_not_come_the_others_say_so_in_time(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start(tmp_path / "run", 1, 2, start_timeout=0.5)
        ended = launch.end(1)
    assert (ended.error["error"], ended.error["ranks"]) == ("RankMissing", [0])
    assert "same root" in ended.error["message"]


def test_where_another_rank_does_not_come_rank_0_names_it(tmp_path: Path) -> None:
    root, hurry = tmp_path / "run", tmp_path / "hurry"
    with Launch() as launch:
        launch.start(root, 0, 3, hurry=str(hurry))
        launch.start(root, 2, 3, tells=r"hello/000002\.json")
        launch.line_of(2, "written")
        hurry.touch()
        ended = [launch.end(rank) for rank in (0, 2)]
    assert (ended[0].error["error"], ended[0].error["ranks"]) == ("RankMissing", [1])
    assert ended[1].error["error"] == "RankMissing"
    assert "rank 1" in ended[1].error["message"]


def test_a_rank_that_was_told_another_number_of_ranks_is_named(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start(tmp_path / "run", 0, 2)
        launch.start(tmp_path / "run", 1, 3)
        ended = [launch.end(rank) for rank in range(2)]
    for one in ended:
        assert one.error["error"] == "RankMissing"
        assert "Rank 1 was told that there are 3 ranks, and rank 0 that there are 2" in one.error["message"]


def test_a_rank_with_another_root_does_not_take_part(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start(tmp_path / "run", 0, 2, start_timeout=1.5)
        launch.start(tmp_path / "other", 1, 2, start_timeout=1.5)
        ended = [launch.end(rank) for rank in range(2)]
    assert [one.error["error"] for one in ended] == ["RankMissing"] * 2
    assert "rank 1 said nothing" in ended[0].error["message"]
    assert "with the same root" in ended[1].error["message"]


def test_of_two_processes_with_the_same_rank_one_takes_part_and_the_other_is_told_which(
    tmp_path: Path, undisturbed: Path
) -> None:
    root, hurry = tmp_path / "run", tmp_path / "hurry"
    with Launch() as launch:
        for name in ("one", "other"):
            launch.start(root, 1, 2, name=name, hurry=str(hurry))
        launch.start(root, 0, 2)
        assert launch.end(0).status == 0
        hurry.touch()  # whoever is not in by now will not come in any more
        ended = {name: launch.end(name) for name in ("one", "other")}
        pids = {name: launch.pid(name) for name in ended}
    in_, out = sorted(ended, key=lambda name: ended[name].status)
    assert [ended[in_].status, ended[out].status] == [0, 3]
    assert f"Process {pids[in_]} on " in ended[out].error["message"]
    assert_same(root, undisturbed)
    assert_whole(root)


def test_a_second_start_beside_one_that_lives_is_refused_and_does_not_disturb_it(
    tmp_path: Path, undisturbed: Path
) -> None:
    root = tmp_path / "run"
    with Launch() as first:
        for rank in range(2):
            first.start(root, rank, 2, stop=r"^commits/" if rank == 0 else "", stop_number=3)
        first.stopped(0)
        with Launch() as second:
            for rank in range(2):
                second.start(root, rank, 2, start_timeout=1.0)
            ended = [second.end(rank) for rank in range(2)]
        assert [one.error["error"] for one in ended] == ["RunBusy", "RankMissing"]
        assert "rank 1" in ended[1].error["message"]
        assert f"{first.pid(1)} on " in ended[1].error["message"]
        first.go_on(0)
        assert [first.end(rank).status for rank in range(2)] == [0, 0]
    assert_same(root, undisturbed)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(r"^packs/.*\.pack$", marks=pytest.mark.exactness),
        pytest.param(r"@rank1\.json$", marks=pytest.mark.exactness),
        r"saves/\d+/000001\.json$",
    ],
)
def test_a_rank_of_a_former_start_that_wakes_up_is_fenced_and_nothing_of_it_counts(
    tmp_path: Path, undisturbed: Path, key: str
) -> None:
    root = tmp_path / "run"
    with Launch() as former:
        for rank in range(2):
            former.start(root, rank, 2, stop=key if rank == 1 else "", stop_number=2)
        former.stopped(1)
        former.kill(0)
        former.end(0)
        finish(root, 2)
        kept = {commit.directory: repository(root).manifest(commit) for commit in repository(root).commits()}
        former.go_on(1)
        late = former.end(1)
    assert late.error["error"] == "Fenced"
    assert {c.directory: repository(root).manifest(c) for c in repository(root).commits()} == kept
    assert_whole(root)
    assert_same(root, undisturbed)
    finish(root, 2)  # sweeps what it has left
    assert_swept(repository(root))
