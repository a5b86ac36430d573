"""A mirror by itself: one checkpoint that cannot be copied costs no other, and an empty run binds no mirror."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.repo.states import meta, snapshot
from tests.store.test_real_conditions import mounted
from unbroken.errors import ConfigError, CorruptObject, StoreFull, Untrusted
from unbroken.format.mirror import MIRROR
from unbroken.repo.mirror import Lost, Mirror, bring_back, contents
from unbroken.repo.repository import Repository
from unbroken.repo.retention import Best

OURS, THEIRS = "the key of the one who reads", "the key of somebody else"


def save(
    root: Path,
    step: int,
    *,
    opaque: bool = False,
    metrics: dict[str, float] | None = None,
    weights: bytes = b"w" * 3000,
) -> None:
    with Repository.open(root, "run", create=True).writer() as writer:
        writer.write(snapshot(weights, step=step, opaque=opaque), meta(step, metrics=metrics))


def steps(root: Path) -> list[int]:
    return [commit.step for commit in Repository.open(root, "run").commits()]


def update(root: Path, mirror: Path, *, best: Best | None = None, keep_last: int = 3) -> list[Lost]:
    with Mirror.open(str(mirror), Repository.open(root, "run")) as opened:
        return [one for one in opened.update(keep_last=keep_last, best=best) if isinstance(one, Lost)]


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose oldest checkpoint, which a mirror keeps as its best one, holds a pickle that another key has signed."""
    monkeypatch.setenv("UNBROKEN_KEY", THEIRS)
    save(tmp_path / "runs", 10, opaque=True, metrics={"reward": 9.0})
    monkeypatch.setenv("UNBROKEN_KEY", OURS)
    save(tmp_path / "runs", 20, metrics={"reward": 1.0})
    return tmp_path / "runs"


def test_a_checkpoint_that_another_key_has_signed_costs_the_mirror_no_other(
    mixed: Path, tmp_path: Path
) -> None:
    (lost,) = update(mixed, tmp_path / "mirror", best=Best("reward"))
    assert (lost.commit.step, type(lost.error)) == (10, Untrusted)
    assert steps(tmp_path / "mirror") == [20]


def test_a_damaged_checkpoint_costs_the_mirror_no_other(tmp_path: Path) -> None:
    save(tmp_path / "runs", 10, metrics={"reward": 9.0})
    save(tmp_path / "runs", 20, metrics={"reward": 1.0})
    oldest = Repository.open(tmp_path / "runs", "run").commits()[-1]
    (tmp_path / "runs" / "run" / oldest.directory / "policy_weights.json").write_text("{}")
    (lost,) = update(tmp_path / "runs", tmp_path / "mirror", best=Best("reward"))
    assert (lost.commit.step, type(lost.error)) == (10, CorruptObject)
    assert steps(tmp_path / "mirror") == [20]


@pytest.mark.parametrize("trusts", [False, True])
def test_what_another_key_has_signed_is_brought_back_only_unsigned_to_whom_trusts_it(
    mixed: Path, tmp_path: Path, trusts: bool
) -> None:
    new = Repository.open(tmp_path / "new", "run", create=True)
    (tmp_path / "mirror").mkdir()
    mixed.joinpath("run").rename(tmp_path / "mirror" / "run")
    wanted = Repository.open(tmp_path / "mirror", "run").commits()[::-1]
    with new.writer() as writer:
        done = bring_back(str(tmp_path / "mirror"), new, writer, wanted, unsigned=trusts)
    assert [isinstance(one, Lost) for one in done] == [not trusts, False]
    assert steps(tmp_path / "new") == ([20, 10] if trusts else [20])
    manifests = [new.manifest(commit) for commit in new.commits()]
    assert all(manifest.signature is None for manifest in manifests)


def test_a_mirror_that_is_taken_for_a_run_without_a_checkpoint_gets_no_name(tmp_path: Path) -> None:
    Repository.open(tmp_path / "runs", "run", create=True)
    assert update(tmp_path / "runs", tmp_path / "mirror") == []
    assert [*tmp_path.rglob(MIRROR)] == []
    save(tmp_path / "runs", 10)
    update(tmp_path / "runs", tmp_path / "mirror")
    first, second = tmp_path.rglob(MIRROR)
    assert first.read_bytes() == second.read_bytes()


def test_a_run_that_lost_everything_but_its_name_joins_what_its_mirror_holds(tmp_path: Path) -> None:
    save(tmp_path / "lost", 10)
    update(tmp_path / "lost", tmp_path / "mirror")
    save(tmp_path / "other", 5)
    update(tmp_path / "other", tmp_path / "another mirror")
    new = Repository.open(tmp_path / "new", "run", create=True)
    new.store.put(MIRROR, (tmp_path / "other" / "run" / MIRROR).read_bytes())
    assert update(tmp_path / "new", tmp_path / "mirror") == []
    save(tmp_path / "new", 20)
    update(tmp_path / "new", tmp_path / "mirror")
    assert steps(tmp_path / "mirror") == [20, 10]


def test_a_run_that_takes_over_a_mirror_has_it_alone(tmp_path: Path) -> None:
    save(tmp_path / "one", 10)
    update(tmp_path / "one", tmp_path / "mirror")
    Repository.open(tmp_path / "two", "run", create=True)
    update(tmp_path / "two", tmp_path / "mirror")
    save(tmp_path / "one", 15)
    with pytest.raises(ConfigError, match="belongs to another run"):
        update(tmp_path / "one", tmp_path / "mirror")
    save(tmp_path / "two", 20)
    update(tmp_path / "two", tmp_path / "mirror")
    assert steps(tmp_path / "mirror") == [20, 10]


@pytest.mark.parametrize("named", [True, False], ids=["with a name", "without a name"])
def test_two_runs_that_both_hold_checkpoints_are_never_joined(tmp_path: Path, named: bool) -> None:
    save(tmp_path / "one", 10)
    update(tmp_path / "one", tmp_path / "mirror")
    save(tmp_path / "two", 20)
    if named:
        update(tmp_path / "two", tmp_path / "another mirror")
    with pytest.raises(ConfigError, match="belongs to another run") as raised:
        update(tmp_path / "two", tmp_path / "mirror")
    assert "To go on from what the mirror holds, move this run away" in raised.value.hint
    assert steps(tmp_path / "mirror") == [10]


def test_why_a_mirror_holds_nothing_is_told(tmp_path: Path) -> None:
    def nothing() -> str:
        return contents(str(tmp_path / "mirror"), "run").nothing

    assert nothing().endswith(f"holds no checkpoint: there is no directory {tmp_path / 'mirror'}")
    (tmp_path / "mirror").mkdir()
    assert nothing().endswith(f"holds no checkpoint: there is no run 'run' in {tmp_path / 'mirror'}")
    Repository.open(tmp_path / "mirror", "run", create=True)
    assert nothing().endswith("holds no checkpoint")
    save(tmp_path / "mirror", 3)
    assert nothing() == ""


def test_a_full_mirror_first_drops_what_need_not_be_kept(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    draw = np.random.default_rng(1)
    with mounted(tmp_path / "mirror", "-t", "tmpfs", "-o", "size=2m", "unbroken-test"):
        for step in (10, 20, 30):
            save(tmp_path / "runs", step, weights=draw.bytes(500_000))
            update(tmp_path / "runs", tmp_path / "mirror", keep_last=9)
        save(tmp_path / "runs", 40, weights=draw.bytes(500_000))
        with pytest.raises(StoreFull):
            update(tmp_path / "runs", tmp_path / "mirror", keep_last=9)
        assert steps(tmp_path / "mirror") == [30, 20, 10]
        assert update(tmp_path / "runs", tmp_path / "mirror", keep_last=1) == []
        assert steps(tmp_path / "mirror") == [40]
        mirrored = Repository.open(tmp_path / "mirror", "run")
        assert mirrored.load(mirrored.commits()[0]).components["policy_weights"].blobs
