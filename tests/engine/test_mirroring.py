"""A second place for checkpoints: filled beside the training, and brought back when the first is lost."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.engine.runs import abandon, flip_newest, repository, run_and_abandon, steps_of
from tests.engine.training import Training, engine_of, train, undisturbed
from tests.repo.states import meta, snapshot
from tests.store.test_real_conditions import mounted
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.faults import FaultKind
from unbroken.engine.mirroring import Mirroring, MirrorWarning, mirror_contents
from unbroken.engine.recovery import Tier
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, NoUsableCheckpoint, RunBusy, StoreError, Untrusted
from unbroken.repo import mirror as mirrors
from unbroken.repo.repository import Repository
from unbroken.repo.retention import Best


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def train_with(root: Path, mirror: Path, *, until: int, killed: bool = True, **settings: Any) -> Training:
    """Train up to a step, waiting for the mirror after each save; then end as a killed process, or in order."""
    training = Training()
    engine = engine_of(training, root, mirror=mirror, **settings)
    start = engine.resume().step
    for step in range(start, until):
        if engine.step(step, metrics={"reward": float(step % 20)}):
            engine.wait()
            assert engine._dispatch.mirroring is not None
            engine._dispatch.mirroring.wait()
        training.step()
    if killed:
        abandon(engine)
    else:
        engine.save(until, reason="end of training", position="end")
        engine.close()
    return training


def mirrored(mirror: Path) -> list[int]:
    return [commit.step for commit in Repository.open(mirror, "run").commits()]


def assert_whole(root: Path) -> None:
    there = Repository.open(root, "run")
    assert [there.verify(commit) for commit in there.commits()] == [[] for _ in there.commits()]
    assert there.broken() == []


def resumed(root: Path, *, until: int, **settings: Any) -> tuple[CheckpointEngine, Training]:
    training = Training(seed=99)
    engine = engine_of(training, root, **settings)
    report = engine.resume()
    train(engine, training, start=report.step, until=until)
    return engine, training


def test_a_mirror_keeps_its_own_number_of_the_newest(root: Path, mirror: Path) -> None:
    train_with(root, mirror, until=75, mirror_keep_last=2, keep_last=4)
    assert steps_of(root) == [70, 60, 50, 40]
    assert mirrored(mirror) == [70, 60]
    assert_whole(mirror)


def test_the_best_and_the_end_stay_in_a_mirror(root: Path, mirror: Path) -> None:
    best = Best("reward", "max")
    train_with(root, mirror, until=75, killed=False, mirror_keep_last=1, keep_last=4, best=best)
    assert mirrored(mirror) == [75, 10], "10 is the first with the largest value; 75 the end"


def test_what_was_committed_last_is_in_the_mirror_when_the_training_has_ended(
    root: Path, mirror: Path
) -> None:
    training = Training()
    engine = engine_of(training, root, mirror=mirror)
    engine.resume()
    train(engine, training, start=0, until=25)
    engine.close()
    assert mirrored(mirror)[0] == 20


def test_a_run_whose_first_place_is_gone_goes_on_from_its_mirror_as_if_nothing_had_been(
    root: Path, mirror: Path
) -> None:
    train_with(root, mirror, until=37)
    shutil.rmtree(root)
    training = Training(seed=99)
    engine = engine_of(training, root, mirror=mirror)
    report = engine.resume()
    assert (report.step, report.tier, report.fault.kind) == (30, Tier.NEWEST, FaultKind.HARD)
    assert report.line.startswith(
        "unbroken: goes on at step 30 from the mirror"
        f" · nothing was here, 3 checkpoints came from the mirror {mirror / 'run'} · "
    )
    assert (report.reasons, "passed over" in report.text) == ((), False)
    assert "host" not in report.line, "it is the same host, and of another process nothing is known"
    assert repository(root).history()[0].reasons == [f"from the mirror {mirror / 'run'}: step 10, 20, 30"]
    train(engine, training, start=30, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)
    assert_whole(root)
    assert_whole(mirror)


def test_without_the_mirror_such_a_run_begins_anew(root: Path, mirror: Path) -> None:
    train_with(root, mirror, until=37)
    shutil.rmtree(root)
    engine, _ = resumed(root, until=1)
    engine.close()
    assert repository(root).history()[0].tier == "fresh"


def test_damage_in_the_first_place_is_mended_from_the_mirror_before_an_older_one_is_taken(
    root: Path, mirror: Path
) -> None:
    train_with(root, mirror, until=37)
    flip_newest(root)
    engine, training = resumed(root, until=60, mirror=mirror)
    line = repository(root).history()[-1]
    assert (line.tier, line.step, line.fault) == ("newest", 30, "data")
    assert any("from the mirror" in reason for reason in line.reasons)
    engine.close()
    assert training.digest() == undisturbed(60)


def test_damaged_packs_are_written_anew_from_the_mirror(root: Path, mirror: Path) -> None:
    train_with(root, mirror, until=37)
    for pack in (root / "run" / "packs").rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        for place in range(40, len(data), 50):
            data[place] ^= 0xFF
        pack.write_bytes(bytes(data))
    engine, training = resumed(root, until=60, mirror=mirror)
    assert repository(root).history()[-1].step == 30
    engine.close()
    assert training.digest() == undisturbed(60)


def test_without_a_mirror_the_same_damage_falls_to_an_older_checkpoint(root: Path, mirror: Path) -> None:
    train_with(root, mirror, until=37)
    flip_newest(root)
    engine, _ = resumed(root, until=21)
    assert (repository(root).history()[-1].tier, repository(root).history()[-1].step) == ("older", 20)
    engine.close()


def test_a_mirror_that_is_damaged_too_leaves_the_older_checkpoint_and_says_so(
    root: Path, mirror: Path
) -> None:
    train_with(root, mirror, until=37)
    flip_newest(root)
    flip_newest(mirror, count=9)
    engine, _ = resumed(root, until=20, mirror=mirror)
    line = repository(root).history()[-1]
    assert (line.tier, line.step) == ("older", 20)
    assert any("of the mirror" in reason and "damaged" in reason for reason in line.reasons)
    with warnings.catch_warnings():  # the damaged one is still the newest, and is not copied
        warnings.simplefilter("ignore", MirrorWarning)
        engine.close()


def test_a_step_that_only_the_mirror_has_is_fetched_from_it(root: Path, mirror: Path) -> None:
    train_with(root, mirror, until=57, keep_last=1, mirror_keep_last=4)
    assert steps_of(root) == [50]
    engine, training = resumed(root, until=60, mirror=mirror, resume=30)
    assert repository(root).history()[-1].step == 30
    engine.close()
    assert training.digest() == undisturbed(60)


def test_a_step_that_nobody_has_stops_with_those_that_there_are(root: Path, mirror: Path) -> None:
    train_with(root, mirror, until=37)
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint has step 31"):
        resumed(root, until=60, mirror=mirror, resume=31)


def in_the_way(mirror: Path) -> None:
    """Let every write of a checkpoint in the mirror fail, whoever asks."""
    shutil.rmtree(mirror / "run" / "steps", ignore_errors=True)
    (mirror / "run" / "steps").write_text("in the way")


def test_a_mirror_that_fails_costs_no_checkpoint_and_is_heard_once(root: Path, mirror: Path) -> None:
    training = Training()
    engine = engine_of(training, root, mirror=mirror)
    engine.resume()
    mirroring = engine._dispatch.mirroring
    assert mirroring is not None
    mirroring.wait()
    in_the_way(mirror)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for step in range(40):
            if engine.step(step):
                engine.wait()
                mirroring.wait()
            training.step()
        engine.close()
    assert steps_of(root) == [30, 20, 10, 0]
    told = [str(one.message) for one in heard if one.category is MirrorWarning]
    assert len(told) == len(mirroring.failures) == 1
    assert str(mirror) in told[0]
    assert sum(mirroring.failures.values()) == 3
    assert any("the mirror" in reason for reason in repository(root).history()[-1].reasons)


def test_a_first_start_whose_mirror_has_no_room_goes_on_and_says_so(tmp_path: Path, mirror: Path) -> None:
    with mounted(mirror, "-t", "tmpfs", "-o", "size=16k", "unbroken-test"):
        with contextlib.suppress(OSError), (mirror / "more").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            engine = engine_of(Training(), tmp_path / "runs", mirror=mirror)
            assert engine.resume().step == 0
            engine.save(5, reason="asked for", wait=True)
            engine.close()
        said = [str(one.message) for one in heard if issubclass(one.category, MirrorWarning)]
        assert ["is not up to date: No room is left" in one for one in said] == [True]
        assert steps_of(tmp_path / "runs") == [5, 0]


def test_what_has_failed_is_copied_with_the_next_save(root: Path, mirror: Path) -> None:
    training = Training()
    engine = engine_of(training, root, mirror=mirror)
    engine.resume()
    mirroring = engine._dispatch.mirroring
    assert mirroring is not None
    mirroring.wait()
    in_the_way(mirror)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MirrorWarning)
        for step in range(40):
            if step == 25:
                (mirror / "run" / "steps").unlink()
            if engine.step(step):
                engine.wait()
                mirroring.wait()
            training.step()
        engine.close()
    assert mirrored(mirror)[0] == 30
    there = Repository.open(mirror, "run")
    assert there.verify(there.commits()[0]) == []


def test_two_processes_cannot_have_one_mirror_at_a_time(tmp_path: Path, mirror: Path) -> None:
    first = engine_of(Training(), tmp_path / "one", mirror=mirror)
    first.resume()
    second = engine_of(Training(), tmp_path / "two", mirror=mirror)
    with pytest.raises((RunBusy, ConfigError)):
        second.resume()
    first.close()


def test_the_mirror_of_another_run_is_refused_and_left_alone(tmp_path: Path, mirror: Path) -> None:
    train_with(tmp_path / "one", mirror, until=25, killed=False)
    before = sorted((path, path.read_bytes()) for path in mirror.rglob("*") if path.is_file())
    run_and_abandon(tmp_path / "two", until=25)
    with pytest.raises(ConfigError, match="belongs to another run"):
        engine_of(Training(), tmp_path / "two", mirror=mirror).resume()
    assert sorted((path, path.read_bytes()) for path in mirror.rglob("*") if path.is_file()) == before
    engine = engine_of(Training(), tmp_path / "two")
    assert engine.resume().step == 20, "the refusal has given the run back"
    engine.close()


@pytest.mark.parametrize("where", ["same", "inside", "around"])
def test_a_mirror_where_the_run_itself_lies_is_refused(tmp_path: Path, where: str) -> None:
    root, mirror = {
        "same": (tmp_path / "a", tmp_path / "a"),
        "inside": (tmp_path / "a", tmp_path / "a" / "run"),
        "around": (tmp_path / "a" / "run", tmp_path / "a"),
    }[where]
    with pytest.raises(ConfigError, match="lies where the run itself does"):
        engine_of(Training(), root, mirror=mirror).resume()
    assert not any(tmp_path.iterdir())


def test_a_run_that_is_whole_is_refused_the_mirror_that_another_one_has_taken_over(
    tmp_path: Path, mirror: Path
) -> None:
    train_with(tmp_path / "one", mirror, until=25, killed=False)
    engine, _ = resumed(tmp_path / "two", until=31, mirror=mirror)
    engine.close()
    assert steps_of(tmp_path / "two")[-1] <= 25 < steps_of(tmp_path / "two")[0], "it went on from the mirror"
    before = steps_of(mirror)
    with pytest.raises(ConfigError, match="belongs to another run"):
        engine_of(Training(), tmp_path / "one", mirror=mirror).resume()
    assert steps_of(mirror) == before
    engine = engine_of(Training(), tmp_path / "one")
    assert engine.resume().step == 25, "the refusal has given the run back"
    engine.close()


def test_a_run_with_checkpoints_may_be_given_a_mirror_later(root: Path, mirror: Path) -> None:
    run_and_abandon(root)
    engine, _ = resumed(root, until=31, mirror=mirror)
    engine.close()
    assert mirrored(mirror) == [30]


def test_a_run_that_is_lost_stops_where_its_mirror_does_not_answer(root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "run").mkdir(parents=True)
    (broken / "run" / "format.json").symlink_to("format.json")
    with pytest.raises(StoreError, match="does not answer") as raised:
        engine_of(Training(), root, mirror=broken).resume()
    assert 'resume="never"' in raised.value.hint
    assert steps_of(root) == []
    engine = engine_of(Training(), root, mirror=broken, resume="never")
    with pytest.warns(MirrorWarning):
        engine.resume()
    engine.close()
    assert steps_of(root) == [0]


def test_what_a_mirror_holds_is_told_without_writing(root: Path, mirror: Path) -> None:
    settings = Settings(root=root, job="run", mirror=mirror)
    before = mirror_contents(settings)
    assert before is not None
    assert (before.commits, before.problem, mirror.exists()) == ((), "", False)
    train_with(root, mirror, until=37, killed=False)
    found = mirror_contents(settings)
    assert found is not None
    assert [commit.step for commit in found.commits] == mirrored(mirror)
    assert mirror_contents(Settings(root=root, job="run")) is None


def test_a_newest_checkpoint_is_never_followed_by_an_older_one_in_a_mirror(root: Path, mirror: Path) -> None:
    run_and_abandon(root)
    source = repository(root)
    with mirrors.Mirror.open(str(mirror), source) as opened:
        assert [
            one.source.step for one in opened.update(keep_last=3) if not isinstance(one, mirrors.Lost)
        ] == [30]
        again = list(opened.update(keep_last=3, best=Best("reward")))
    assert all(not isinstance(one, mirrors.Lost) and one.was_there for one in again)
    assert mirrored(mirror) == [30]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_round_that_ends_its_thread_is_heard_and_nobody_waits_for_it(root: Path, mirror: Path) -> None:
    run_and_abandon(root)

    def clock() -> float:
        raise SystemExit  # what no handler of errors catches

    mirroring = Mirroring(Settings(root=root, job="run", mirror=mirror), clock=clock)
    for _ in range(2):
        mirroring.soon()
        thread = mirroring._thread
        mirroring.wait()
        if thread is not None:
            thread.join()  # what it has raised is heard in this test, and in no other
    assert mirroring.failures == {"SystemExit": 2}
    mirroring.close()


def files(place: Path) -> list[Path]:
    return sorted(place.rglob("*"))


def test_a_first_start_says_that_it_has_asked_the_mirror_in_vain(root: Path, mirror: Path) -> None:
    engine = engine_of(Training(), root, mirror=mirror)
    report = engine.resume()
    engine.close()
    told = f"the mirror {mirror / 'run'} holds no checkpoint: there is no directory {mirror}"
    assert f" · {told} · " in report.line
    assert "because nothing that was saved" not in report.line
    assert repository(root).history()[0].reasons == [told]
    assert mirrored(mirror) == [0], "once the run has something, the mirror is made"


@pytest.mark.parametrize("there", [True, False], ids=["an empty directory", "no directory"])
def test_a_start_that_is_refused_for_a_mirror_that_is_not_mounted_costs_the_backup_nothing(
    root: Path, mirror: Path, there: bool
) -> None:
    train_with(root, mirror, until=37)
    shutil.rmtree(root)
    mirror.rename(mirror.with_name("unmounted"))
    if there:
        mirror.mkdir()
    with pytest.raises(NoUsableCheckpoint) as raised:
        engine_of(Training(), root, mirror=mirror, resume="must").resume()
    assert any("holds no checkpoint" in reason for reason in raised.value.reasons)
    assert files(mirror) == []
    if there:
        mirror.rmdir()
    mirror.with_name("unmounted").rename(mirror)
    training = Training(seed=99)
    engine = engine_of(training, root, mirror=mirror, resume="must")
    assert engine.resume().step == 30
    train(engine, training, start=30, until=60)
    engine.close()
    assert training.digest() == undisturbed(60)
    assert mirrored(mirror)[0] == 50


def test_a_run_that_is_lost_does_not_begin_anew_where_nothing_of_its_mirror_can_be_used(
    root: Path, mirror: Path
) -> None:
    train_with(root, mirror, until=37)
    shutil.rmtree(root)
    flip_newest(mirror, count=9)
    with pytest.raises(NoUsableCheckpoint, match="nothing of its mirror can be used") as raised:
        engine_of(Training(), root, mirror=mirror).resume()
    assert len(raised.value.reasons) == 3
    engine = engine_of(Training(), root, mirror=mirror, worst_tier="fresh")
    report = engine.resume()
    assert "starts at step 0, because nothing that was saved can be used" in report.line
    assert all("of the mirror" in reason for reason in repository(root).history()[-1].reasons)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MirrorWarning)
        engine.close()


def test_a_run_that_is_lost_stops_where_a_key_is_missing_for_the_newest_in_its_mirror(
    root: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_KEY", "the key of somebody else")
    with Repository.open(mirror, "run", create=True).writer() as writer:
        writer.write(snapshot(step=5), meta(5))
        writer.write(snapshot(step=10, opaque=True), meta(10))
    monkeypatch.setenv("UNBROKEN_KEY", "the key of the one who starts")
    with pytest.raises(Untrusted, match=r"cannot give back what is lost: .*step 10") as raised:
        engine_of(Training(), root, mirror=mirror).resume()
    assert "UNBROKEN_KEY" in raised.value.hint
    assert steps_of(root) == [], "else the next start would go on from the older one"


def test_a_copy_back_that_was_cut_short_is_finished_by_the_next_start(root: Path, mirror: Path) -> None:
    train_with(root, mirror, until=37)
    shutil.rmtree(root)
    oldest = Repository.open(mirror, "run").commits()[-1]
    first = Repository.open(root, "run", create=True)
    with first.writer() as writer:
        mirrors.bring_back(str(mirror), first, writer, [oldest])
    assert steps_of(root) == [10]
    engine, training = resumed(root, until=60, mirror=mirror)
    assert f"from the mirror {mirror / 'run'}: step 20, 30" in repository(root).history()[-1].reasons
    engine.close()
    assert training.digest() == undisturbed(60)
    assert mirrored(mirror)[0] == 50
