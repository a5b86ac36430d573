"""A pointer leads to its commit, through a framework's copies of its file, and says when it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.errors import CorruptObject
from unbroken.format.pointer import FILE
from unbroken.repo import pointers
from unbroken.repo.repository import Repository
from unbroken.store.memory import MemoryStore

from .states import meta, process, snapshot, tokens


def test_a_pointer_names_its_commit(tmp_path: Path) -> None:
    repository = Repository.over(MemoryStore(), "job", create=True)
    with repository.writer(owner=process(1), token=tokens(1)) as writer:
        commit = writer.write(snapshot(), meta(7))
    pointers.write(tmp_path, commit, root="/runs", job="job", world_size=3)
    found = pointers.read(tmp_path)
    assert found is not None
    assert (found.root, found.job, found.sequence, found.digest) == (
        "/runs", "job", commit.sequence, commit.manifest_digest
    )  # fmt: skip
    assert (found.step, found.world_size, found.directory) == (7, 3, commit.directory)


def test_no_pointer_is_none_and_a_damaged_one_an_error(tmp_path: Path) -> None:
    assert pointers.read(tmp_path) is None
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(CorruptObject):
        pointers.read(tmp_path)
