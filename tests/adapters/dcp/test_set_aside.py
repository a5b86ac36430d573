"""What is set aside in a run stays, and is built on by no rank, where unbroken.dcp writes the run."""

from __future__ import annotations

import signal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import unbroken.dcp
from tests.adapters.dcp.ranks import ANY, run
from tests.adapters.dcp.storage_script import FIRST, SECOND
from unbroken.repo.repository import Repository

dcp: Any = import_module("torch.distributed.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def save(root: Path, step: int, tensor: torch.Tensor) -> None:
    writer = unbroken.dcp.StorageWriter(root, step=step, keep_last=1)
    try:
        dcp.save({"tensor": tensor}, storage_writer=writer)
    finally:
        writer.close()


def load(root: Path, step: int) -> torch.Tensor:
    found = {"tensor": torch.zeros(700)}
    dcp.load(found, storage_reader=unbroken.dcp.StorageReader(root, step=step))
    return found["tensor"]


def set_aside(repository: Repository) -> None:
    """Put on record what a start does that begins anew."""
    with repository.writer() as writer:
        writer.set_aside(repository.commits())


def flip(root: Path) -> None:
    """Damage all that the packs of a run hold."""
    for pack in root.rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        for at in range(64, len(data), 64):
            data[at] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(bytes(data))


def test_what_is_set_aside_outlives_every_later_save(tmp_path: Path) -> None:
    root = tmp_path / "run"
    save(root, 1, torch.full((700,), 1.0))
    set_aside(Repository.open(root, "run"))
    for step in (2, 3, 4):
        save(root, step, torch.full((700,), float(step)))
    repository = Repository.open(root, "run")
    assert [commit.step for commit in repository.commits()] == [4, 1]
    assert load(root, 1).eq(1.0).all()
    assert load(root, 4).eq(4.0).all()
    assert repository.verify(repository.commits()[0]) == []


@pytest.mark.parametrize("aside", [True, pytest.param(False, marks=pytest.mark.exactness)])
def test_no_rank_builds_on_what_is_set_aside(aside: bool, tmp_path: Path) -> None:
    """A buffer that no step changes is in both checkpoints: written twice, or once where nothing is set aside."""
    root = tmp_path / "run"
    run(tmp_path, "storage_script.py", "kill", root, expect=[ANY, -signal.SIGKILL])
    repository = Repository.open(root, "run")
    assert [commit.step for commit in repository.commits()] == [FIRST]
    if aside:
        set_aside(repository)
    packs = {pack: pack.read_bytes() for pack in root.rglob("*.pack")}
    run(tmp_path, "storage_script.py", "again", root)
    later = {pack: pack.read_bytes() for pack in root.rglob("*.pack") if pack not in packs}
    flip(root)
    for pack, data in later.items():
        pack.write_bytes(data)
    repository = Repository.open(root, "run")
    newest, first = repository.commits()
    assert (newest.step, first.step) == (SECOND, FIRST)
    assert (repository.verify(newest) == []) is aside
    assert repository.verify(first) != []
