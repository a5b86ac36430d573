"""Checkpoints that announce more than they hold, read in a process of little memory: each is refused in words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.repo.forging import add_blobs, forge, honest, repeating, with_blob
from unbroken.errors import CorruptObject
from unbroken.format import document as documents
from unbroken.format.chunks import MAX_CHUNKS
from unbroken.format.digest import digest_of
from unbroken.format.document import CHUNK, BlobRef, Document
from unbroken.repo.repository import Repository
from unbroken.types import Digest

MIB = CHUNK


def seen_in_a_small_process(root: Path) -> tuple[str, str]:
    """Return what came of loading and of verifying the run."""
    script = Path(__file__).with_name("bomb_script.py")
    done = subprocess.run(
        [sys.executable, str(script), str(root)], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded, verified = done.stdout.splitlines()
    return loaded, verified


def announced(root: Path, ref: BlobRef, blobs: Mapping[Digest, bytes]) -> Repository:
    repository = honest(root)
    add_blobs(repository, blobs)
    forge(repository, with_blob(ref))
    return repository


def test_a_list_of_few_nodes_that_announces_a_huge_array_is_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    chunk = bytes(MIB)
    root, blobs = repeating(chunk, MAX_CHUNKS)
    announced(tmp_path, BlobRef(size=MAX_CHUNKS * MIB, tree=root), blobs)
    loaded, verified = seen_in_a_small_process(tmp_path)
    assert loaded.startswith("CorruptObject")
    assert "bytes are needed" in loaded
    assert verified == "whole"


def test_many_tiny_chunks_count_by_what_each_of_them_costs(tmp_path: Path) -> None:
    root, blobs = repeating(b"x", 8 * MIB)
    announced(tmp_path, BlobRef(size=8 * MIB, chunk=1, tree=root), blobs)
    loaded, _ = seen_in_a_small_process(tmp_path)
    assert "bytes are needed" in loaded


def test_a_repeating_array_that_has_room_is_read(tmp_path: Path) -> None:
    root, blobs = repeating(bytes(MIB), 300)
    announced(tmp_path, BlobRef(size=300 * MIB, tree=root), blobs)
    assert seen_in_a_small_process(tmp_path) == ("read", "whole")


def test_more_chunks_than_any_array_has_are_no_document() -> None:
    with pytest.raises(ValueError, match="too long"):
        BlobRef(size=MAX_CHUNKS * MIB + 1, tree=digest_of(b""))


def test_a_chunk_that_stands_in_places_of_different_sizes_is_damage(tmp_path: Path) -> None:
    root, blobs = repeating(bytes(MIB), 40)
    repository = announced(tmp_path, BlobRef(size=39 * MIB + 5, tree=root), blobs)
    commit = repository.commits()[0]
    with pytest.raises(CorruptObject, match="different sizes"):
        repository.load(commit)
    assert repository.verify(commit)


def test_documents_nested_without_end_are_refused_in_both_formats() -> None:

    for deep in (b"[" * 3_000_000, b'{"roots":' * 300_000):
        with pytest.raises(CorruptObject):
            documents.decode(deep)
    for deep in (b"\x91" * 3_000_000, b"\x81\xa5roots" * 300_000):
        with pytest.raises(CorruptObject):
            documents.decode(deep, "msgpack")


def test_msgpack_that_announces_billions_of_values_is_refused() -> None:

    honest_document = msgspec.msgpack.encode(
        Document(magic=documents.DOCUMENT_MAGIC, version=0, component="x", roots={})
    )
    for announced in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        for before in (
            b"",
            b"\x81\xa1a\x82\xa1$\xa4list\xa1v",
            b"\x81\xa1a\x83\xa1$\xa5array\xa1d\xa2f8\xa1s",
        ):
            with pytest.raises(CorruptObject):
                documents.decode(honest_document[:-1] + before + announced, "msgpack")
