"""What is whole and is not taken: weights that are no numbers, counts that contradict each other, a policy that fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.engine.runs import abandon, flip_newest, repository, run_and_abandon, steps_of
from tests.engine.training import POLICY, Training, engine_of, train, undisturbed
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.faults import FaultKind
from unbroken.engine.guards.counters import check_records
from unbroken.engine.guards.devices import check_devices
from unbroken.engine.guards.warm_up import WarmUpTrial
from unbroken.engine.recovery import Tier
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, CorruptObject, NoUsableCheckpoint, Rejected, RestoreFailed
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.state.nodes import Coded, Dict, Object, Tuple
from unbroken.state.snapshot import Component, Snapshot


class WithoutLooking(GraftSource):
    """A source that finds every weight in order."""

    @staticmethod
    def sick_places(snapshot: Snapshot) -> dict[str, str]:
        return {}


class Counting(GraftSource):
    """A source whose state says its step."""

    def counts(self, saved: Snapshot) -> Mapping[str, int]:
        (root,) = (c.roots["training"] for c in saved.components.values() if "training" in c.roots)
        assert isinstance(root, Object)
        count = root.a["count"]
        assert isinstance(count, int)
        return {"step": count}


def engine_over(
    kind: type[GraftSource], training: Training, root: Path, resume: str | int = "auto"
) -> CheckpointEngine:
    settings = Settings(root=root, job="run", every=10, resume=resume)  # type: ignore[arg-type]
    return CheckpointEngine(kind({"training": training}, policy_of_loaded(POLICY)), settings, environment={})


def test_a_checkpoint_that_is_called_good_and_holds_nan_is_not_taken(root: Path) -> None:
    training = Training()
    engine = engine_over(WithoutLooking, training, root)
    engine.resume()
    train(engine, training, start=0, until=15)
    training.net.weights[2, 2] = np.nan
    train(engine, training, start=15, until=25)
    abandon(engine)
    assert [commit.good for commit in repository(root).commits()] == [True, True, True]

    taken = Training()
    engine = engine_of(taken, root)
    report = engine.resume()
    assert (report.step, report.tier, report.fault.kind) == (10, Tier.OLDER, FaultKind.SOFT)
    assert "training/net/weights" in report.reasons[0]
    train(engine, taken, start=10, until=40)
    engine.close()
    assert taken.digest() == undisturbed(40)
    assert 20 in steps_of(root), "it is not damaged, and stays among the last"

    engine = engine_of(Training(), root, resume=20)
    assert engine.resume().step == 20, "a person who names it gets it"
    engine.close()


def test_a_state_that_has_counted_another_step_than_its_record_is_damaged(root: Path) -> None:
    training = Training()
    engine = engine_over(Counting, training, root)
    engine.resume()
    train(engine, training, start=0, until=15)
    engine.save(20, reason="by mistake", wait=True)  # the state is that of step 15
    abandon(engine)

    training = Training()
    engine = engine_over(Counting, training, root)
    report = engine.resume()
    assert (report.step, report.tier, report.fault.kind) == (10, Tier.OLDER, FaultKind.DATA)
    assert "its state has counted 15 as step, and its record says 20" in report.reasons[0]
    train(engine, training, start=10, until=40)
    engine.close()
    assert training.digest() == undisturbed(40)


@pytest.mark.parametrize("field", ["step", "segment", "position", "good", "birth"])
def test_a_commit_and_its_metadata_must_speak_of_one_checkpoint(root: Path, field: str) -> None:
    run_and_abandon(root)
    commit = repository(root).commits()[0]
    meta = repository(root).meta(commit)
    check_records(commit, meta)
    others = {"step": 7, "segment": 3, "position": "end", "good": False, "birth": ""}
    with pytest.raises(CorruptObject, match=field):
        check_records(commit, msgspec.structs.replace(meta, **{field: others[field]}))


def test_a_commit_lies_in_the_directory_of_its_step(root: Path) -> None:
    run_and_abandon(root)
    newest, older = repository(root).commits()[:2]
    strayed: Commit = msgspec.structs.replace(newest, directory=older.directory)
    meta: Meta = repository(root).meta(newest)
    with pytest.raises(CorruptObject, match=older.directory):
        check_records(strayed, meta)


def resumed(
    training: Training, root: Path, trial: WarmUpTrial, **settings: Any
) -> tuple[CheckpointEngine, ResumeReport]:
    engine = engine_of(training, root, trial=trial, **settings)
    return engine, engine.resume()


def spoil(training: Training) -> None:
    """What an evaluation does to a training that is not made for it."""
    for _ in range(3):
        training.step()
    training.net.weights[:] = 7.0
    training.rate = 99.0


def test_a_trial_leaves_no_trace(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root)
    training, seen = Training(seed=99), list[int]()

    def evaluate() -> None:
        seen.append(training.count)
        spoil(training)

    engine, report = resumed(training, root, WarmUpTrial(evaluate))
    assert (report.step, report.tier, seen) == (20, Tier.OLDER, [20])
    assert "the warm-up evaluation lets it pass" in report.text
    train(engine, training, start=20, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_what_a_trial_does_would_change_the_end(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root)
    training = Training(seed=99)
    engine = engine_of(training, root)
    engine.resume()
    spoil(training)
    train(engine, training, start=20, until=60)
    engine.close()
    assert training.digest() != undisturbed(60)


@pytest.mark.parametrize("answer", [False, "a mean reward of 3"])
def test_a_rejected_checkpoint_is_passed_over_with_the_reason_and_kept(root: Path, answer: object) -> None:
    run_and_abandon(root)
    flip_newest(root)
    training = Training(seed=99)

    def evaluate() -> object:
        good = training.count < 20
        spoil(training)
        return good or answer

    engine, report = resumed(training, root, WarmUpTrial(evaluate))
    assert (report.step, report.tier) == (10, Tier.OLDER)
    (reason,) = (reason for reason in report.reasons if "step 20" in reason)
    assert "the warm-up evaluation rejects it" in reason
    assert str(answer) in reason or answer is False
    train(engine, training, start=10, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)
    assert 20 in steps_of(root)


def test_the_newest_is_tried_only_if_that_is_wished(root: Path) -> None:
    run_and_abandon(root)
    training, seen = Training(), list[int]()

    def evaluate() -> bool:
        seen.append(training.count)
        spoil(training)
        return seen != [30]

    engine, report = resumed(training, root, WarmUpTrial(evaluate))
    abandon(engine)
    assert (report.step, seen) == (30, [])
    training = Training()
    engine, report = resumed(training, root, WarmUpTrial(evaluate, always=True))
    assert (report.step, report.tier, seen) == (20, Tier.OLDER, [30, 20])
    train(engine, training, start=20, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_a_checkpoint_that_a_person_has_named_is_not_tried(root: Path) -> None:
    run_and_abandon(root)
    engine, report = resumed(Training(), root, WarmUpTrial(lambda: False, always=True), resume=20)
    engine.close()
    assert report.step == 20


def test_if_all_are_rejected_the_run_stops_and_lists_each(root: Path) -> None:
    run_and_abandon(root)
    with pytest.raises(NoUsableCheckpoint) as raised:
        resumed(Training(), root, WarmUpTrial(lambda: "no good", always=True))
    assert str(raised.value).count("the warm-up evaluation rejects it: no good") == 4
    assert "resume=30" in raised.value.hint
    engine, report = resumed(Training(), root, WarmUpTrial(lambda: "no good", always=True), resume=30)
    engine.close()
    assert report.step == 30, "as the hint says"
    assert steps_of(root) == [30, 20, 10, 0]


def test_what_is_rejected_is_no_damage() -> None:
    with pytest.raises(Rejected) as raised:
        WarmUpTrial(lambda: False).run()
    assert not isinstance(raised.value, CorruptObject)


def test_a_start_anew_after_rejections_is_from_the_objects_as_they_were_built(root: Path) -> None:
    run_and_abandon(root)
    training = Training()

    def evaluate() -> bool:
        spoil(training)
        return False

    engine, report = resumed(training, root, WarmUpTrial(evaluate, always=True), worst_tier="fresh")
    assert (report.step, report.tier) == (0, Tier.FRESH)
    train(engine, training, start=0, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_a_trial_that_fails_says_nothing_of_the_checkpoint(root: Path) -> None:
    run_and_abandon(root)

    def evaluate() -> None:
        raise ZeroDivisionError("a mistake in the script")

    with pytest.raises(
        RestoreFailed, match=r"ZeroDivisionError: a mistake in the script.*no checkpoint was touched"
    ):
        resumed(Training(), root, WarmUpTrial(evaluate, always=True))
    assert steps_of(root) == [30, 20, 10, 0]
    engine = engine_of(Training(), root)
    assert engine.resume().step == 30
    engine.close()


def test_a_trial_that_answers_with_a_number_is_told_what_to_answer(root: Path) -> None:
    run_and_abandon(root)
    with pytest.raises(ConfigError, match=r"returned 12\.5.*Return None"):
        resumed(Training(), root, WarmUpTrial(lambda: 12.5, always=True))
    with pytest.raises(ConfigError, match="is a function"):
        WarmUpTrial("evaluate")  # type: ignore[arg-type]


def test_what_a_trial_adds_is_gone_afterwards_and_is_no_news(root: Path) -> None:
    run_and_abandon(root)
    training = Training()

    def evaluate() -> None:
        training.net.cache = [1.0]  # type: ignore[attr-defined]

    engine, report = resumed(training, root, WarmUpTrial(evaluate, always=True))
    assert (report.changes, hasattr(training.net, "cache")) == ((), False)
    train(engine, training, start=30, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_a_setting_that_the_script_has_changed_and_a_trial_spoils_is_an_error_by_name(root: Path) -> None:
    """The checkpoint cannot put it back: of such a setting the script's value counts, and that is gone."""
    run_and_abandon(root)
    training = Training(rate=0.25)

    def evaluate() -> None:
        training.rate = 99.0

    with pytest.raises(RestoreFailed, match=r"training/rate: 0\.25 → 99\.0.*objects of its own"):
        resumed(training, root, WarmUpTrial(evaluate, always=True))


def tensors(**devices: str) -> Snapshot:
    """A state of tensors, by their names; one whose name ends in 0 has no dimensions."""
    roots = {
        name: Coded(
            k="torch.tensor",
            v=Dict(
                v={
                    "dtype": "float32",
                    "shape": Tuple(v=[] if name.endswith("0") else [2]),
                    **({} if device == "cpu" else {"device": device}),
                }
            ),
        )
        for name, device in devices.items()
    }
    return Snapshot(components={"policy_weights": Component("policy_weights", roots=dict(roots))})


def test_every_tensor_lies_on_the_device_of_its_twin() -> None:
    twin = tensors(weight="cuda:0", step0="cpu")
    saved = tensors(weight="cpu", moment="cpu", step0="cpu", count0="cpu")
    check_devices(twin, saved, tensors(weight="cuda:0", moment="cuda:0", step0="cpu", count0="cpu"))
    with pytest.raises(
        RestoreFailed, match=r"1 tensors are on another.*moment is on cpu and belongs on cuda:0"
    ):
        check_devices(twin, saved, tensors(weight="cuda:0", moment="cpu", step0="cpu", count0="cpu"))
    with pytest.raises(RestoreFailed, match="weight is on cpu and belongs on cuda:0"):
        check_devices(twin, saved, tensors(weight="cpu", moment="cuda:0"))


def test_a_tensor_stays_where_it_was_saved_if_nothing_was_moved() -> None:
    twin = tensors(weight="cuda:0", table="cpu")
    saved = tensors(weight="cuda:0", table="cpu", moment="cuda:0", sums="cpu")
    check_devices(twin, saved, saved)
    with pytest.raises(RestoreFailed, match="sums is on cuda:0 and belongs on cpu"):
        check_devices(twin, saved, tensors(weight="cuda:0", table="cpu", moment="cuda:0", sums="cuda:0"))
