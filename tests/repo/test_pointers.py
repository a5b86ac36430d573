"""A pointer leads to its commit, through a framework's copies of its file, and says when it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.errors import CorruptObject
from unbroken.format.pointer import FILE
from unbroken.format.records import LowWater
from unbroken.repo import pointers
from unbroken.repo.repository import Repository
from unbroken.repo.seal import seal
from unbroken.store.memory import MemoryStore
from unbroken.types import Epoch, Sequence

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


def test_no_pointer_is_none(tmp_path: Path) -> None:
    assert pointers.read(tmp_path) is None
    assert pointers.read(tmp_path / "none") is None


@pytest.mark.parametrize("content", [b"{}", b"", b"\xff\xfe", b'{"type": "commit"}'])
def test_a_damaged_one_is_an_error_with_advice_that_helps(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CorruptObject, match=str(tmp_path)) as caught:
        pointers.read(tmp_path)
    assert "another of its checkpoints" in caught.value.hint and "verify" not in str(caught.value)


def test_a_record_of_another_kind_is_no_pointer(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(seal(LowWater(sequence=Sequence(3), epoch=Epoch(1))))
    with pytest.raises(CorruptObject, match=FILE) as caught:
        pointers.read(tmp_path)
    assert "verify" not in str(caught.value)


def test_a_directory_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(CorruptObject, match="is a directory") as caught:
        pointers.read(tmp_path)
    assert "verify" not in str(caught.value)
