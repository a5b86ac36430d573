"""One worker in Ray Train's local mode, in this process: what is refused, what is said, and what comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unbroken.errors import ConfigError, RankMissing
from unbroken.format.pointer import FILE, Pointer
from unbroken.repo.repository import Repository
from unbroken.repo.seal import seal

train = pytest.importorskip("ray.train")
torch_trainer = pytest.importorskip("ray.train.torch")
run_module = pytest.importorskip("unbroken.adapters.ray_train.run")
world_module = pytest.importorskip("unbroken.adapters.ray_train.world")
job_name, is_made_up = run_module.job_name, run_module.is_made_up
unbroken_train = pytest.importorskip("unbroken.ray_train")

STEPS = 6


def in_worker(function: Callable[[], None], *, name: str | None = None) -> None:
    """Run a training function in an experiment of this name, with errors of its own as they are."""
    raised: list[BaseException] = []

    def training() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    torch_trainer.TorchTrainer(
        training, scaling_config=train.ScalingConfig(num_workers=0), run_config=train.RunConfig(name=name)
    ).fit()
    if raised:
        raise raised[0]


def steps(root: Path, total: int = STEPS, **options: Any) -> Any:
    """Train a little; return the run."""
    array = np.zeros(3)
    ckpt = unbroken_train.start(root, every=2, quiet=True, array=array, **options)
    for step in ckpt.steps(total):
        array += step
        ckpt.report({"sum": float(array.sum()), "name": "x"}, epoch=step, env_seed=7)
    return ckpt


def pointer_to(root: Path, place: Path, **changed: Any) -> Any:
    """Return Ray's checkpoint with a pointer to the newest commit of a run, or to what is given instead."""
    commit = Repository.open(root, root.name).commits()[0]
    known: dict[str, Any] = {
        "root": str(root), "job": root.name, "sequence": commit.sequence, "digest": commit.manifest_digest,
        "step": commit.step,
    }  # fmt: skip
    place.mkdir()
    (place / FILE).write_bytes(seal(Pointer(**{**known, **changed})))
    return train.Checkpoint.from_directory(place)


def test_outside_of_a_training_function_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no worker of Ray Train"):
        unbroken_train.start(tmp_path / "run")


def test_what_cannot_be_used_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def refused() -> None:
        with pytest.raises(ConfigError, match="relative"):
            unbroken_train.start("runs/ppo")
        with pytest.raises(ConfigError, match="local mode"):
            unbroken_train.start()
        with pytest.raises(ConfigError, match="worker_status"):
            unbroken_train.start(tmp_path / "run", worker_status=[])
        ckpt = unbroken_train.start(tmp_path / "run", array=np.zeros(1))
        with pytest.raises(ConfigError, match="not begun"):
            ckpt.report({})

    in_worker(refused)
    assert list(tmp_path.iterdir()) == []


def test_a_fact_that_is_none_is_refused(tmp_path: Path) -> None:
    def refused() -> None:
        ckpt = unbroken_train.start(tmp_path / "run", quiet=True, array=np.zeros(1))
        for _ in ckpt.steps(1):
            for facts in ({"rank": 3}, {"epoch": object()}, {"epoch": float("nan")}, {"env_seeds": 3}):
                with pytest.raises(ConfigError, match=r"plain fact|stands in|one whole number"):
                    ckpt.report({}, **facts)
            ckpt.report({}, epoch=np.int64(3), seeds=(1, 2))
            ckpt.report({}, env_seeds=[np.int64(5), None])
            assert ckpt.status == {"epoch": 3, "seeds": [1, 2], "env_seeds": [5, None]}

    in_worker(refused)


def test_a_finished_training_comes_back_and_can_go_on(tmp_path: Path) -> None:
    root = tmp_path / "run"
    runs: list[Any] = []
    in_worker(lambda: runs.append(steps(root)))
    in_worker(lambda: runs.append(steps(root)))
    in_worker(lambda: runs.append(steps(root, STEPS + 2)))
    assert [run.resumed.step for run in runs] == [0, STEPS, STEPS]
    assert runs[0].worker_status == ()
    for run in runs[1:]:
        (entry,) = run.worker_status
        assert (entry["rank"], entry["epoch"], entry["env_seed"]) == (0, STEPS - 1, 7)
    meta = Repository.open(root, "run").meta(Repository.open(root, "run").commits()[0])
    assert meta.step == STEPS + 2
    assert meta.metrics == {"sum": 3 * sum(range(STEPS + 2))}


@pytest.mark.filterwarnings("ignore:Not in the checkpoint. held:unbroken.UntrackedWarning")
def test_what_was_saved_is_there_after_a_wait(tmp_path: Path) -> None:
    root = tmp_path / "run"
    held: list[int] = []

    def waiting() -> None:
        ckpt = unbroken_train.start(root, every=1, quiet=True, array=np.zeros(3))
        with pytest.raises(ConfigError, match="not begun"):
            ckpt.wait()
        for _ in ckpt.steps(3):
            assert ckpt.wait()
            held.append(Repository.open(root, "run").commits()[0].step)

    in_worker(waiting)
    assert held == [0, 1, 2]


def test_a_second_loop_is_refused(tmp_path: Path) -> None:
    def twice() -> None:
        ckpt = steps(tmp_path / "run")
        with pytest.raises(ConfigError, match="one loop"):
            ckpt.steps(9)
        with pytest.raises(ConfigError, match="before the loop"):
            ckpt.track(more=[])

    in_worker(twice)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    in_worker(lambda: steps(root) and None)
    return root


def resumed_with(root: Path, checkpoint: Any) -> Any:
    """Go on where Ray gives this checkpoint; return how that went."""
    found: list[Any] = []

    def training() -> None:
        train.report(
            {}, checkpoint=checkpoint
        )  # in local mode the next start is given what was reported last
        found.append(steps(root, STEPS + 4).resumed)

    in_worker(training)
    return found[0]


def test_rays_record_that_is_up_to_date_is_not_spoken_of(run: Path, tmp_path: Path) -> None:
    assert "Ray Train" not in resumed_with(run, pointer_to(run, tmp_path / "given")).line


def test_where_rays_record_is_older_the_newest_checkpoint_is_taken_and_said(
    run: Path, tmp_path: Path
) -> None:
    older = Repository.open(run, "run").commits()[1]
    given = pointer_to(
        run, tmp_path / "given", sequence=older.sequence, digest=older.manifest_digest, step=older.step
    )
    report = resumed_with(run, given)
    assert report.step == STEPS
    assert f"Ray Train's record is of step {older.step}" in report.line


def test_a_pointer_that_leads_nowhere_is_named_and_the_newest_is_taken(run: Path, tmp_path: Path) -> None:
    report = resumed_with(run, pointer_to(run, tmp_path / "given", sequence=99, step=90))
    assert report.step == STEPS
    assert "Ray Train's record names step 90, which the run no longer holds" in report.line


def test_a_partial_copy_in_rays_storage_is_never_preferred(run: Path, tmp_path: Path) -> None:
    # Fault I5: what lies there looks like a checkpoint and is none.
    place = tmp_path / "given"
    checkpoint = pointer_to(run, place)
    data = (place / FILE).read_bytes()
    (place / FILE).write_bytes(data[: len(data) // 2])
    report = resumed_with(run, checkpoint)
    assert report.step == STEPS
    assert "cannot be read and is not used" in report.line
    (place / FILE).unlink()
    assert "was written by something else" in resumed_with(run, checkpoint).line
    place.rmdir()
    report = resumed_with(run, checkpoint)
    assert (report.step, report.restored) == (STEPS + 4, True)
    assert "Ray Train's checkpoint" in report.line


def test_the_record_of_another_run_does_not_lead_to_a_start_from_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="step 6 of the run 'run'") as error:
        resumed_with(tmp_path / "other", pointer_to(run, tmp_path / "given"))
    assert "former root" in error.value.hint
    assert not (tmp_path / "other").exists()


def test_an_error_out_of_report_cannot_be_left_behind(tmp_path: Path) -> None:
    class Unspeakable:
        def __repr__(self) -> str:
            raise RuntimeError("no words for it")

    def training() -> None:
        ckpt = unbroken_train.start(tmp_path / "run", quiet=True, array=np.zeros(1))
        for _ in ckpt.steps(2):
            with pytest.raises(RuntimeError, match="no words for it"):
                ckpt.report({"metric": Unspeakable()})

    # Caught by the script, and yet the loop does not go on: Ray's next report would hang.
    with pytest.raises(RuntimeError, match="no words for it"):
        in_worker(training)


def test_experiments_with_one_root_are_a_run_each(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    found: dict[str, Any] = {}

    def training(name: str, **options: Any) -> Callable[[], None]:
        return lambda: found.update({name: steps(root, **options)})

    in_worker(training("first"), name="experiments/first")
    in_worker(training("second"), name="second")
    in_worker(training("again"), name="second")
    in_worker(training("given", job="mine"), name="second")
    in_worker(training("nameless"))
    in_worker(training("nameless again"))
    assert {name: (run.settings.job, run.resumed.step) for name, run in found.items()} == {
        "first": ("experiments-first", 0),
        "second": ("second", 0),
        "again": ("second", STEPS),
        "given": ("mine", 0),
        # Ray makes up another name at each start, by which nobody would find the run again.
        "nameless": ("runs", 0),
        "nameless again": ("runs", STEPS),
    }


def test_a_worker_that_does_not_come_to_agree_is_an_error_and_no_hang() -> None:
    came: list[bool] = []

    def ask(wish: bool) -> bool:
        came.append(wish)
        if not wish:
            threading.Event().wait()  # for the others, of whom one never comes
        return wish

    agree = world_module.in_time(ask, seconds=0.01)
    assert agree(True) is True
    for _ in range(2):
        with pytest.raises(RankMissing, match=r"within 0\.01 seconds"):
            agree(False)
    assert came == [True, False]  # Ray is not asked again: it would take that for another worker

    def fails(wish: bool) -> bool:
        raise TimeoutError(f"of Ray, {wish}")

    with pytest.raises(TimeoutError, match="of Ray, True"):
        world_module.in_time(fails, seconds=10)(True)


def test_an_experiment_gives_its_name_to_the_run() -> None:
    assert job_name("a b/c") == "a-b-c"
    assert job_name("...") == "run"
    assert is_made_up(str(train.RunConfig().name))
    assert not is_made_up("ppo")
