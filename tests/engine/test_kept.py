"""Which checkpoints are kept, found and taken by a start in a process of its own: faults I7, I9, I13, I14, L1 to L5.

Each process here is forked, trains, and is killed or ends; what it says goes into a file.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.children import die, in_child
from tests.engine.runs import break_store, flip_newest, repository, steps_of
from tests.engine.training import Training, engine_of, source_of, train, undisturbed
from tests.repo.states import meta, snapshot
from unbroken.engine.clone import Origin
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.keeping import Keeping
from unbroken.engine.settings import Settings
from unbroken.errors import NoUsableCheckpoint, SaveFailed
from unbroken.repo.repository import Repository
from unbroken.repo.retention import Best
from unbroken.store.memory import MemoryStore
from unbroken.types import Sequence

HIGHEST = Best("score")


def start(root: Path, until: int = 60, **settings: Any) -> dict[str, Any]:
    """Start the run in a process of its own, and train; return from where it went on and what it came to."""
    told = root.with_name("told.json")

    def body() -> None:
        training = Training(seed=99)
        engine = engine_of(training, root, **settings)
        try:
            report = engine.resume()
        except NoUsableCheckpoint as error:
            told.write_text(json.dumps({"stops": error.message, "reasons": error.reasons}))
            return
        if not report.restored:
            # A start anew is from the objects as the script has built them, and those had another seed.
            training.generator = Training().generator
        train(engine, training, start=report.step, until=until)
        engine.close()
        digest = training.digest()
        told.write_text(
            json.dumps(
                {
                    "tier": report.tier.value,
                    "step": report.step,
                    "reasons": report.reasons,
                    "whole": digest == undisturbed(until),
                }
            )
        )

    assert in_child(body) == 0
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def save_with(
    root: Path, scores: Iterable[float], *, first: int = 1, best: Best = HIGHEST, keep_last: int = 1
) -> None:
    """Train in a process of its own that is killed; a save at each tenth step, with these scores."""

    def body() -> None:
        training = Training()
        engine = engine_of(training, root, keep_last=keep_last, best=best)
        engine.resume()
        for number, score in enumerate(scores, start=first):
            for _ in range(10):
                training.step()
            engine.save(10 * number, reason="test", metrics={"score": score}, wait=True)
        die()

    assert in_child(body) == -signal.SIGKILL


def killed(root: Path) -> None:
    def body() -> None:
        training = Training()
        engine = engine_of(training, root)
        engine.resume()
        train(engine, training, start=0, until=37)
        die()

    assert in_child(body) == -signal.SIGKILL
    assert steps_of(root) == [30, 20, 10, 0]


DAMAGED = {"nothing": 0, "the newest": 1, "all": 4}


@pytest.mark.parametrize(
    ("damage", "worst", "goes_on"),
    [
        *(("nothing", worst, ("newest", 30)) for worst in ("newest", "older", "rebuilt", "fresh")),
        ("the newest", "newest", None),
        *(("the newest", worst, ("older", 20)) for worst in ("older", "rebuilt", "fresh")),
        *(("all", worst, None) for worst in ("newest", "older", "rebuilt")),
        ("all", "fresh", ("fresh", 0)),
    ],
)
def test_a_run_falls_as_far_as_it_may_and_no_further(
    root: Path, damage: str, worst: str, goes_on: tuple[str, int] | None
) -> None:
    killed(root)
    flip_newest(root, count=DAMAGED[damage])
    told = start(root, worst_tier=worst)
    if goes_on is not None:
        assert (told["tier"], told["step"], told["whole"]) == (*goes_on, True)
        return
    assert f"worst_tier='{worst}'" in told["stops"]
    assert len([line for line in told["reasons"] if line.startswith("commit")]) == 4
    assert steps_of(root) == [30, 20, 10, 0], "nothing was touched"
    assert start(root, worst_tier="fresh")["whole"], "and a person who allows more goes on"


def test_a_record_whose_checkpoint_is_gone_leads_to_the_newest_that_is_there(root: Path) -> None:
    """I7. To start at zero, or to stop, would be wrong as long as there is one."""
    killed(root)
    for commit in repository(root).commits()[:2]:
        shutil.rmtree(root / "run" / commit.directory)
    told = start(root)
    assert (told["tier"], told["step"], told["whole"]) == ("older", 10, True)
    assert len(told["reasons"]) == 2


def test_a_save_that_failed_is_not_the_latest_and_can_be_made_again(root: Path) -> None:
    """I9."""

    def body() -> None:
        training = Training()
        engine = engine_of(training, root)
        engine.resume()
        train(engine, training, start=0, until=20)
        repair = break_store(root)
        with pytest.raises(SaveFailed):
            engine.save(20, reason="test", wait=True)
        repair()
        assert engine.latest_step() == 10
        engine.save(20, reason="again", wait=True)
        assert engine.latest_step() == 20
        die()

    assert in_child(body) == -signal.SIGKILL
    told = start(root)
    assert (told["tier"], told["step"], told["whole"]) == ("newest", 20, True)


def test_what_a_save_has_left_behind_is_no_checkpoint(root: Path) -> None:
    """I13. Files without their names, and a directory that no commit names, with a higher step than any."""
    killed(root)
    run, newest = root / "run", repository(root).commits()[0]
    shutil.copytree(run / newest.directory, run / "steps/step_000000000099-ffffffffffffe1")
    (run / "commits/.tmp-0123456789abcdef").write_bytes(
        (run / f"commits/{newest.sequence:010d}.json").read_bytes()
    )
    told = start(root)
    assert (told["tier"], told["step"], told["whole"]) == ("newest", 30, True)
    assert 99 not in steps_of(root)
    assert not (run / "steps/step_000000000099-ffffffffffffe1").exists()


def test_parts_of_two_checkpoints_are_none(root: Path) -> None:
    """I14. Each of the two is whole by itself."""
    killed(root)
    newest, older = repository(root).commits()[:2]
    name = "training_state.json"
    shutil.copyfile(root / "run" / older.directory / name, root / "run" / newest.directory / name)
    told = start(root)
    assert (told["tier"], told["step"], told["whole"]) == ("older", 20, True)
    assert name in told["reasons"][0]


def test_the_latest_loads_whatever_its_score(root: Path) -> None:
    """L1. One is kept by its score, and it is not the latest."""
    save_with(root, [3.0, 1.0, 2.0])
    assert steps_of(root) == [30, 10]
    engine = engine_of(Training(), root)
    assert engine.latest_step() == 30
    assert engine.load(30).components
    told = start(root)
    assert (told["step"], told["whole"]) == (30, True)


def test_the_last_are_kept_beside_the_best_and_the_last_is_taken(root: Path) -> None:
    """L2. The score falls all the time."""
    save_with(root, range(10, 0, -1), keep_last=3)
    assert steps_of(root) == [100, 90, 80, 10]
    assert start(root, until=120)["step"] == 100


def test_the_step_that_every_start_is_sent_to_stays_beside_the_last(root: Path) -> None:
    killed(root)
    for until in (90, 120):
        told = start(root, until=until, resume=10, keep_last=2)
        assert (told["step"], told["whole"]) == (10, True), "without that checkpoint it could only stop"
        assert steps_of(root)[-1] == 10
    start(root, until=150, keep_last=2)
    assert 10 not in steps_of(root), "nobody names it any more"


@pytest.mark.parametrize(
    ("damaged", "kept"), [(set[int](), {5, 3}), ({3}, {5, 2}), ({2, 3}, {5})], ids=["whole", "one", "both"]
)
def test_of_a_step_saved_twice_the_one_that_a_start_would_take_stays(
    damaged: set[int], kept: set[int]
) -> None:
    with Repository.over(MemoryStore(), "run", create=True).writer() as writer:
        for step in (1, 2, 2, 3, 4):
            writer.write(snapshot(step=step), meta(step))
        keeping = Keeping(keep_last=1, resumed=2, damaged=frozenset(map(Sequence, damaged)))
        plan = keeping.plan(writer.checkpoints)
    assert {commit.sequence for commit in plan.kept} == kept


def test_who_goes_on_from_another_run_leaves_it_as_it_is(root: Path) -> None:
    """L3. What belongs to another run is never deleted, though its score is remembered."""
    save_with(root, [1.0, 2.0, 3.0], keep_last=3)
    before = {path: path.read_bytes() for path in sorted((root / "run").rglob("*")) if path.is_file()}
    parent = repository(root).commits()[0]
    origin = Origin(root=root, job="run", sequence=parent.sequence, digest=parent.manifest_digest)

    def body() -> None:
        training = Training()
        settings = Settings(root=root, job="child", every=10, keep_last=1, best=HIGHEST)
        engine = CheckpointEngine(source_of(training), settings, environment={})
        engine.resume(origin=origin)
        for step in range(40, 90, 10):
            training.step()
            engine.save(step, reason="test", metrics={"score": 1.0}, wait=True)
        engine.close()

    assert in_child(body) == 0
    assert {path: path.read_bytes() for path in sorted((root / "run").rglob("*")) if path.is_file()} == before


def test_the_best_is_remembered_over_a_restart(root: Path) -> None:
    """L4. One best over both processes, and not one of each."""
    lowest = Best("score", "min")
    save_with(root, [5.0, 2.0, 3.0], best=lowest)
    assert steps_of(root) == [30, 20]
    save_with(root, [6.0, 4.0], first=4, best=lowest)
    assert steps_of(root) == [50, 20]
    save_with(root, [1.0, 7.0], first=6, best=lowest)
    assert steps_of(root) == [70, 60]


def test_checkpoints_that_somebody_has_deleted_are_not_missed(root: Path) -> None:
    """L5. The two newest are deleted by hand; the run goes on from the third, and cleans up as before."""
    save_with(root, [1.0, 2.0, 3.0, 4.0, 5.0], keep_last=4)
    assert steps_of(root) == [50, 40, 30, 20]
    for commit in repository(root).commits()[:2]:
        shutil.rmtree(root / "run" / commit.directory)
        (root / "run" / f"commits/{commit.sequence:010d}.json").unlink()
    save_with(root, [3.5, 3.6, 3.7], first=4, keep_last=4)
    assert steps_of(root) == [60, 50, 40, 30]
    assert start(root, until=80)["step"] == 60
