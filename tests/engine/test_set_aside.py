"""A start that begins anew because nothing can be used deletes nothing that can still be read.

Each training is a process of its own that is killed, or ends, as one of a cluster is.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.children import die, in_child
from tests.engine.runs import repository, steps_of
from tests.engine.training import Training, engine_of, train
from unbroken.engine.report import ResumeReport
from unbroken.format.records import Commit
from unbroken.inspection.listing import checkpoints
from unbroken.inspection.overview import overview_of
from unbroken.inspection.pruned import carried_out
from unbroken.repo.pruning import plan_prune
from unbroken.repo.retention import Best
from unbroken.ui.report.tables import checkpoints_table

OLD = [30, 20, 10, 0]
WEIGHTS = "policy_weights"


def life(root: Path, *, until: int, killed: bool, said: Path | None = None, **settings: Any) -> None:
    """Train in a process of its own, from where the run goes on."""

    def body() -> None:
        training = Training()
        engine = engine_of(training, root, **settings)
        report: ResumeReport = engine.resume()
        if said is not None:
            said.write_text(report.text)
        train(engine, training, start=report.step, until=until)
        if killed:
            die()
        engine.close()

    assert in_child(body) == (-signal.SIGKILL if killed else 0)


def harm(root: Path, name: str) -> None:
    """Flip a bit of this file in each checkpoint."""
    for commit in repository(root).commits():
        victim = root / "run" / commit.directory / name
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(bytes(data))


def weights_of(root: Path) -> dict[int, bytes]:
    """Return what can be read of the weights, by sequence."""
    run = repository(root)
    return {commit.sequence: _weights(run.load(commit, [WEIGHTS])) for commit in run.commits()}


def _weights(snapshot: Any) -> bytes:
    return b"".join(bytes(blob.data) for blob in snapshot.components[WEIGHTS].blobs)


def damaged(root: Path) -> dict[int, bytes]:
    """Leave a run of which no checkpoint loads; return the weights that can still be read."""
    life(root, until=37, killed=True, keep_last=4)
    assert steps_of(root) == OLD
    harm(root, "training_state.json")
    return weights_of(root)


def sequences(commits: list[Commit]) -> list[int]:
    return [commit.sequence for commit in commits]


@pytest.mark.parametrize("writer", ["thread", pytest.param("process", marks=pytest.mark.exactness)])
def test_what_can_be_read_outlives_the_new_beginning_and_every_later_process(root: Path, writer: Any) -> None:
    held = damaged(root)
    options: dict[str, Any] = {"keep_last": 2, "worst_tier": "fresh", "writer": writer}
    said = root.with_name("said.txt")
    life(root, until=55, killed=True, said=said, **options)
    assert "because nothing that was saved can be used" in said.read_text()
    assert f"unbroken prune {root}/run --keep-last 1" in said.read_text()
    assert steps_of(root) == [50, 40, *OLD]
    life(root, until=95, killed=True, **options)
    assert steps_of(root) == [90, 80, *OLD]
    now = weights_of(root)
    assert {sequence: now[sequence] for sequence in held} == held
    run = repository(root)
    assert [run.verify(commit) for commit in run.commits()[:2]] == [[], []]


def test_the_report_and_the_pages_say_which_are_set_aside(root: Path) -> None:
    damaged(root)
    life(root, until=15, killed=False, keep_last=2, worst_tier="fresh")
    run = overview_of(repository(root), now=0.0)
    assert {row.step for row in run.checkpoints if row.aside} == {*OLD}
    assert {row.step for row in run.checkpoints if not row.aside} == {0, 10}
    said = [row[7].rpartition("; ")[2] == "set aside" for row in checkpoints_table(run).rows]
    assert said == [False, False, True, True, True, True]


def test_what_is_set_aside_keeps_nothing_alive_that_nobody_can_read(root: Path) -> None:
    damaged(root)
    life(root, until=95, killed=False, keep_last=2, worst_tier="fresh")
    plan = plan_prune(repository(root).store)
    assert plan.collection.keys == (), "each save has deleted what was dead by then"
    assert plan.collection.spared == ()


def test_a_new_beginning_builds_on_no_array_of_what_it_could_not_read(root: Path) -> None:
    """The same script with the same seed makes the same arrays, and nobody has read all that is damaged."""
    damaged(root)
    for pack in (root / "run" / "packs").rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        for at in range(64, len(data), 64):
            data[at] ^= 1
        pack.write_bytes(bytes(data))
    for _ in range(2):
        life(root, until=45, killed=True, keep_last=4, worst_tier="fresh")
        run = repository(root)
        mine = [commit for commit in run.commits() if commit.sequence > 4]
        assert [run.verify(commit) for commit in mine] == [[]] * len(mine)
        shutil.rmtree(root / "run" / mine[0].directory)  # and a later process goes over the same steps


def test_the_best_of_the_new_beginning_is_not_displaced_by_one_that_nobody_can_use(root: Path) -> None:
    def scored(score: float, until: int) -> None:
        def body() -> None:
            training = Training()
            engine = engine_of(training, root, keep_last=1, best=Best("score"), worst_tier="fresh")
            report = engine.resume()
            for step in range(report.step, until, 10):
                for _ in range(10):
                    training.step()
                engine.save(step + 10, reason="test", metrics={"score": score - step}, wait=True)
            die()

        assert in_child(body) == -signal.SIGKILL

    scored(1000.0, 30)
    old = sequences(repository(root).commits())
    harm(root, "training_state.json")
    scored(500.0, 30)
    scored(0.0, 60)
    found = repository(root).commits()
    new = [(commit.step, commit.metrics["score"]) for commit in found if commit.sequence not in old]
    assert new == [(60, -50.0), (10, 500.0)], "the newest, and the best of those that count"


def test_a_person_deletes_what_was_set_aside(root: Path) -> None:
    damaged(root)
    life(root, until=55, killed=False, keep_last=2, worst_tier="fresh")
    run = repository(root)
    told = [(one.commit.step, one.aside) for one in checkpoints(run)]
    assert [step for step, aside in told if aside] == OLD
    done = carried_out("run", run, keep_last=2)
    assert done.dropped == tuple(OLD)
    life(root, until=95, killed=False, keep_last=2)
    assert len(steps_of(root)) == 2 and not any(one.aside for one in checkpoints(run))


def test_a_record_of_it_that_is_damaged_costs_no_checkpoint(root: Path) -> None:
    held = damaged(root)
    life(root, until=55, killed=True, keep_last=2, worst_tier="fresh")
    (root / "run" / "aside.json").write_text("nothing that can be read")
    life(root, until=95, killed=True, keep_last=2)
    assert held.keys() <= weights_of(root).keys()


def test_a_start_that_was_asked_to_begin_anew_makes_room_as_ever(root: Path) -> None:
    life(root, until=37, killed=True, keep_last=4)
    life(root, until=55, killed=False, keep_last=2, resume="never")
    assert len(steps_of(root)) == 2


def test_the_mirror_of_a_run_that_began_anew_keeps_what_it_had(root: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    options: dict[str, Any] = {"mirror": mirror, "mirror_keep_last": 2}
    life(root, until=37, killed=False, keep_last=4, **options)
    had = steps_of(mirror)
    assert had
    for place in (root, mirror):
        harm(place, "training_state.json")
    for until in (55, 95, 125):  # who is killed may leave a round of its mirror half done
        life(root, until=until, killed=until < 125, keep_last=2, worst_tier="fresh", **options)
    run = repository(mirror)
    assert steps_of(mirror)[-len(had) :] == had
    assert all(
        np.frombuffer(_weights(run.load(commit, [WEIGHTS]))).shape == (256,) for commit in run.commits()
    )
    assert len(run.commits()) <= len(had) + 2
