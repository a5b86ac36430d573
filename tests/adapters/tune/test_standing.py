"""Pointers that Tune has deleted, and files that are none: without a session of Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.errors import ConfigError, CorruptObject
from unbroken.format.pointer import FILE, Pointer
from unbroken.repo.seal import seal
from unbroken.types import Digest, Sequence, Step

pytest.importorskip("ray.tune")


def pointer(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    record = Pointer(
        root="/nowhere",
        job="pbt-1",
        sequence=Sequence(step + 1),
        digest=Digest(f"b3:{step:064x}"),
        step=Step(step),
    )
    (folder / FILE).write_bytes(seal(record))


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A trial of which Tune has kept its pointers 10, 20 and 40 (fault I7), and a checkpoint without one."""
    for step in (10, 20, 40):
        pointer(tmp_path / f"checkpoint_{step:06d}", step)
    (tmp_path / "checkpoint_000025").mkdir()
    return tmp_path


@pytest.mark.parametrize(("wished", "found"), [(30, 20), (20, 20), (50, 40), (5, 10)])
def test_the_nearest_pointer_that_stands_is_taken_by_name(trial: Path, wished: int, found: int) -> None:
    from ray.tune import Checkpoint

    from unbroken.adapters.tune.pointers import read_pointer
    from unbroken.adapters.tune.standing import standing

    chosen, said = standing(Checkpoint.from_directory(trial / f"checkpoint_{wished:06d}"))
    assert read_pointer(chosen.path).step == found
    expected = (
        f"Tune has deleted its checkpoint_{wished:06d} (num_to_keep), so checkpoint_{found:06d} is used"
        if wished != found
        else ""
    )
    assert said == expected


def test_where_nothing_stands_tunes_own_error_comes(tmp_path: Path) -> None:
    from ray.tune import Checkpoint

    from unbroken.adapters.tune.standing import standing

    gone = Checkpoint.from_directory(tmp_path / "trial" / "checkpoint_000001")
    assert standing(gone) == (gone, "")


def test_what_is_no_pointer_is_refused(tmp_path: Path) -> None:
    from unbroken.tune import read_pointer

    with pytest.raises(ConfigError, match=r"holds no POINTER\.json"):
        read_pointer(tmp_path)
    pointer(tmp_path / "one", 10)
    data = (tmp_path / "one" / FILE).read_bytes()
    (tmp_path / "one" / FILE).write_bytes(data[: len(data) // 2])  # a copy that was cut off (fault I6)
    with pytest.raises(CorruptObject, match="damaged"):
        read_pointer(tmp_path / "one")


def test_outside_of_a_trial_nothing_begins(tmp_path: Path) -> None:
    import unbroken.tune

    with pytest.raises(ConfigError, match="There is no trial here"):
        unbroken.tune.start(tmp_path, config={})
    assert list(tmp_path.iterdir()) == []


def test_a_relative_root_is_refused() -> None:
    from unbroken.engine.settings import Settings
    from unbroken.engine.trials import settings_of_trial

    with pytest.raises(ConfigError, match="relative"):
        settings_of_trial(Settings(root="runs", job="trial"), {})
