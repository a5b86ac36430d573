"""Weights that are no numbers on one rank alone: no rank goes on from them, whoever has looked at the save.

Each rank is a process of its own, with weights of its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cli.command import unbroken
from tests.engine.children import in_children
from tests.engine.runs import repository, steps_of
from tests.engine.test_guards import WithoutLooking
from tests.engine.training import POLICY, Training, train, undisturbed
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.engine.world import World

PLACE = "training/net/weights"


def ranks(
    root: Path,
    *,
    until: int,
    spoil: int = -1,
    kind: type[GraftSource] = GraftSource,
    born: float = 0.0,
    resume: str | int = "auto",
) -> list[str]:
    """Train on two ranks from where the run goes on, and kill both. At the step `spoil` a weight of rank 1 is lost, and
    its first one is `born` so. Return where each has gone on from, and why."""

    def life(rank: int) -> None:
        training = Training(seed=rank)
        training.net.weights[0, 0] = born if rank else 0.0
        engine = CheckpointEngine(
            kind({"training": training}, policy_of_loaded(POLICY)),
            Settings(root=root, job="run", every=10, resume=resume),  # type: ignore[arg-type]
            world=World(rank=rank, size=2, replicated=(), sync_timeout=60, start_timeout=60),
            environment={},
        )
        report = engine.resume()
        told = f"{report.step} {report.tier.value} {report.fault.kind.value} {' '.join(report.reasons)}"
        root.with_name(f"told{rank}").write_text(told)
        for step in range(report.step, until, 5):
            train(engine, training, start=step, until=step + 5)
            if step + 5 == spoil and rank == 1:
                training.net.weights[2, 2] = np.nan
        root.with_name(f"digest{rank}").write_text(repr(training.digest()))

    assert in_children(lambda: life(0), lambda: life(1)) == [0, 0]
    return [root.with_name(f"told{rank}").read_text() for rank in range(2)]


def ends(root: Path) -> list[str]:
    """Return the digest of what each rank has come to."""
    return [root.with_name(f"digest{rank}").read_text() for rank in range(2)]


def undisturbed_ends(steps: int) -> list[str]:
    return [repr(undisturbed(steps, seed=rank)) for rank in range(2)]


def test_a_save_of_which_one_rank_has_lost_a_weight_is_not_good_and_no_start_takes_it(root: Path) -> None:
    ranks(root, until=25, spoil=15)
    newest, older = repository(root).commits()[:2]
    assert (newest.good, older.good) == (False, True)
    assert f"rank 1: not finite: {PLACE}" in repository(root).meta(newest).notes
    for told in ranks(root, until=40):
        assert told.startswith("10 older ")
    assert ends(root) == undisturbed_ends(40)


def test_what_is_called_good_and_is_not_on_one_rank_is_passed_over_by_all_and_stays(root: Path) -> None:
    ranks(root, until=25, spoil=15, kind=WithoutLooking)
    assert [commit.good for commit in repository(root).commits()] == [True] * 3
    said = unbroken("doctor", root / "run", cwd=root).out
    assert "would go on at step 10" in said
    assert f"its weights hold NaN or infinite values at {PLACE}" in said
    first, second = ranks(root, until=40)
    assert first.startswith("10 older soft ")
    assert f"rank 1: it is called good, and its weights hold NaN or infinite values at {PLACE}" in first
    assert second.startswith("10 older ")
    assert ends(root) == undisturbed_ends(40)
    assert 20 in steps_of(root), "it is not damaged, and stays among the last"


def test_a_person_who_names_such_a_step_gets_it_on_all_ranks(root: Path) -> None:
    ranks(root, until=25, spoil=15, kind=WithoutLooking)
    for told in ranks(root, until=25, resume=20):
        assert told.startswith("20 ")
    mine, theirs = ends(root), undisturbed_ends(25)
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1], "rank 1 goes on with the weight that is no number"


def test_infinity_with_which_one_rank_was_born_is_no_fault_in_any_start(root: Path) -> None:
    for until in (25, 45):
        ranks(root, until=until, born=np.inf)
        assert all(commit.good for commit in repository(root).commits())
    assert root.with_name("told1").read_text().startswith("20 newest ")
