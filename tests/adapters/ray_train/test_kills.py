"""Workers and drivers of Ray Train that are killed: every rank ends as if nothing had happened.

Two workers with a data-parallel model, each with an environment, a buffer and generators of its own.
"""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import numpy as np
import pytest

from unbroken.repo.repository import Repository

from .driver import cut, differing, drive, pointers, repository_of, said

pytest.importorskip("ray.train")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow

STEPS, MORE = 24, 30
SEED = 4
COLD = {
    "buffer": "replay_buffer@rank1",
    "env": "env_states@rank1",
    "generators": "rng_states@rank1",
    "normalizer": "policy_weights@rank1",
    "optimizer": "optimizer_states",
}
"""What is left as new after a resume, and where it must show at the end."""


@pytest.fixture(scope="module")
def seed(request: pytest.FixtureRequest) -> int:
    """What the steps of kills are drawn from: another one at each `make exactness`. `KILLS_SEED=…` repeats one."""
    marks = str(request.config.getoption("markexpr"))
    own = secrets.randbits(32) if "exactness" in marks.replace("not exactness", "") else SEED
    found = int(os.environ.get("KILLS_SEED", own))
    print(f"KILLS_SEED={found}")
    return found


def drawn(seed: int, what: str, *steps: int) -> int:
    """Draw a step, which does not depend on what else is drawn, and in which order."""
    step = random.Random(f"{seed} {what}").randrange(*steps)
    print(f"{what} at {step}")
    return step


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> Path:
    return place / "undisturbed" / "run"


@pytest.fixture(scope="module")
def workers(place: Path, undisturbed: Path, seed: int) -> Path:
    """A run whose workers are killed; the undisturbed one, and one with a stuck worker, are made by the same driver."""
    root = place / "workers" / "run"
    kills = {"kill": [1, drawn(seed, "worker", 6, 18)], "kill_untold": 20}
    drive(
        {"root": str(undisturbed), "keep_last": 9},
        {"root": str(root), "keep_last": 2, **kills},
        {"root": str(place / "stuck" / "run"), "plain": True, "stuck": drawn(seed, "stuck", 4, 20)},
    )
    return root


@pytest.fixture(scope="module")
def driver(place: Path, undisturbed: Path, workers: Path, seed: int) -> Path:
    """A run whose driver is killed. The one that goes on trains one with fewer workers, too."""
    root = place / "driver" / "run"
    training = {"root": str(root), "kill_driver": drawn(seed, "driver", 6, 22)}
    drive(training, expect=-9)
    fewer = cut(undisturbed, place / "fewer" / "run", 15, record=True)
    drive(training, {"root": str(fewer), "workers": 1})
    return root


def assert_same_end(undisturbed: Path, other: Path) -> None:
    assert differing(undisturbed, other) == set()
    for rank in (0, 1):  # also the live objects: weights, and the next draw of every generator
        assert said(undisturbed, f"end.{rank}") == said(other, f"end.{rank}")


def starts(root: Path, job: str = "run") -> list[int]:
    return [record.step for record in Repository.open(root, job).history() if record.event == "start"]


def test_killed_workers_leave_no_trace(undisturbed: Path, workers: Path) -> None:
    first, second, third = starts(workers)
    assert (first, third) == (0, 20)
    assert 5 <= second <= 15
    assert_same_end(undisturbed, workers)


def test_a_checkpoint_that_ray_was_not_told_of_is_where_the_run_goes_on(workers: Path) -> None:
    line = said(workers, "resumed.0of2")["text"].splitlines()[0]
    assert "goes on at step 20 from the newest checkpoint" in line
    assert "Ray Train's record is of step 15" in line
    assert "exact: all 6 parts" in line


def test_ray_gets_pointers_to_what_is_committed(undisturbed: Path, workers: Path) -> None:
    for root in (undisturbed, workers):
        newest = repository_of(root).commits()[0]
        pointer, *others = pointers(root)
        assert len(others) == 1  # num_to_keep is Ray's affair, and of pointers only
        assert (pointer.sequence, pointer.digest) == (newest.sequence, newest.manifest_digest)
        assert (pointer.step, pointer.world_size, pointer.directory) == (STEPS, 2, newest.directory)
        assert said(root, "result") == {"step": STEPS, "metrics": ["loss"]}
    assert len(repository_of(undisturbed).commits()) == 6
    assert [commit.step for commit in repository_of(workers).commits()] == [STEPS, 20]


def test_what_workers_say_of_themselves_stands_in_the_checkpoint_and_comes_back(
    undisturbed: Path, workers: Path
) -> None:
    repository = repository_of(undisturbed)
    meta = next(repository.meta(commit) for commit in repository.commits() if commit.step == 20)
    assert [entry["env_seed"] for entry in meta.worker_status] == [40, 41]
    assert [entry["epoch"] for entry in meta.worker_status] == [2, 2]
    assert meta.episodes == meta.worker_status[0]["rollouts"] > 0
    assert set(meta.metrics) == {"loss"}
    for rank in (0, 1):
        back = said(workers, f"resumed.{rank}of2")  # the last time, at step 20
        assert [entry["env_seed"] for entry in back["all"]] == [40, 41]
        own = meta.worker_status[rank]
        assert back["own"] == {name: own[name] for name in back["own"]}
        assert set(back["own"]) == {"epoch", "env_seed", "queue_position", "rollouts"}


def test_a_killed_driver_leaves_no_trace(undisturbed: Path, driver: Path) -> None:
    first, *others = starts(driver)
    assert first == 0
    assert 5 <= min(others) <= 20
    assert_same_end(undisturbed, driver)


def test_fewer_workers_go_on_and_are_told_what_it_costs(place: Path, driver: Path) -> None:
    root = place / "fewer" / "run"
    found = said(root, "resumed.0of1")
    assert "goes on at step 15 from the newest checkpoint" in found["text"]
    # A pointer is a hint, even if Ray says that it leads to something complete and newer (fault I5).
    assert f"Ray Train's record names step {STEPS}, which the run no longer holds" in found["text"]
    assert "the number of ranks was 2 and is 1: what rank 1 had of its own is left out" in found["text"]
    assert "no longer exact" in found["text"]
    assert found["own"]["env_seed"] == 40
    assert [entry["env_seed"] for entry in found["all"]] == [40, 41]
    end = next(commit for commit in repository_of(root).commits() if commit.step == STEPS)
    meta = repository_of(root).meta(end)
    assert [(entry["rank"], entry["env_seed"]) for entry in meta.worker_status] == [(0, 40)]


@pytest.mark.exactness
def test_with_a_part_left_cold_they_would_not(place: Path, undisturbed: Path, workers: Path) -> None:
    drive(*({"root": str(cut(undisturbed, place / part / "run", 10)), "cold": part} for part in COLD))
    for part, component in COLD.items():
        root = place / part / "run"
        assert component in differing(undisturbed, root), part
        assert said(undisturbed, "end.0")["weights"] != said(root, "end.0")["weights"], part


@pytest.mark.exactness
def test_more_workers_go_on_and_are_told_what_it_costs(place: Path, driver: Path) -> None:
    root = place / "fewer" / "run"
    drive({"root": str(root), "workers": 2, "steps": MORE})
    found = said(root, "resumed.0of2")
    assert f"had finished at step {STEPS}" in found["text"]
    assert "the number of ranks was 1 and is 2: what rank 1 has of its own is new" in found["text"]
    assert found["own"]["env_seed"] == 40
    assert said(root, "resumed.1of2")["all"] == found["all"]
    assert repository_of(root).commits()[0].step == MORE
    assert (pointers(root)[0].step, pointers(root)[0].world_size) == (MORE, 2)
    weights = [said(root, f"end.{rank}")["weights"] for rank in (0, 1)]
    assert weights[0] == weights[1]


def assert_plain_end(root: Path) -> None:
    for rank in (0, 1):
        rng, total = np.random.default_rng(rank), np.zeros(2)
        for step in range(STEPS):
            total += rng.normal(size=2) * (step + 1)
        end = said(root, f"end.{rank}")
        assert (end["total"], end["draw"]) == (total.tolist(), rng.random())


def test_a_worker_that_never_comes_to_agree_is_an_error_and_no_hang(place: Path, workers: Path) -> None:
    root = place / "stuck" / "run"
    assert "did not meet within 10 seconds" in said(root, "missing.0")
    assert not Path(f"{root}.missing.1.json").exists()
    assert_plain_end(root)  # Ray has started all again, and nothing shows of it


@pytest.mark.exactness
def test_without_torch_and_by_a_clock_workers_save_together_all_the_same(place: Path, seed: int) -> None:
    root = place / "plain" / "run"
    drive({"root": str(root), "plain": True, "kill": [1, drawn(seed, "plain", 12, 22)]})
    (storage,) = Path(f"{root}.ray").glob("*/unbroken")  # in Ray's own storage, under the experiment's name
    assert starts(storage)[0] == 0
    assert_plain_end(root)
    for rank in (0, 1):
        assert 0 < said(root, f"end.{rank}")["from"] < STEPS
