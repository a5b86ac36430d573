"""Parts that several processes write of one checkpoint, and the one who commits it."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pytest

from unbroken.errors import CorruptObject, Fenced
from unbroken.format import layout
from unbroken.format.compression import Compression
from unbroken.format.ranks import RankRecord, SaveOrder
from unbroken.format.records import Commit
from unbroken.repo import fencing
from unbroken.repo.attempt import Joint
from unbroken.repo.part_writer import PartWriter, record_of
from unbroken.repo.process import current
from unbroken.repo.repository import Repository
from unbroken.repo.run_writer import RunWriter
from unbroken.state.nodes import Array, Dict, Opaque
from unbroken.state.snapshot import Base, Component, Rows
from unbroken.store.base import ByteStore

from .states import assert_sound, assert_swept, meta, noise

KEY = b"a key of these tests, and of nothing else"
MINE = 3000


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.open(tmp_path, "job", create=True)


def component(rank: int, content: bytes, *, opaque: bool = False) -> Component:
    node = Array(d="|u1", s=(len(content),), b=0)
    extra = {"pickle": Opaque(c="builtins:object", data=b"not a pickle")} if opaque else {}
    roots = {"shards": Dict(v={"w": node, **extra})}
    return Component(f"shards@rank{rank}", {**roots}, [np.frombuffer(content, np.uint8)])


def part_writer(store: ByteStore, claim: fencing.Claim) -> PartWriter:
    return PartWriter(
        store, claim, document_format="json", compression=Compression(), token=lambda: secrets.token_hex(6)
    )


class Ranks:
    """Two ranks under one claim; each has the store open for itself."""

    def __init__(self, repository: Repository, run: RunWriter) -> None:
        self.repository, self.run = repository, run
        self.claim = run.checkpoints.pen.claim

    def write(
        self, rank: int, order: SaveOrder, content: bytes, *, base: Commit | None = None, opaque: bool = False
    ) -> RankRecord:
        writer = part_writer(self.repository.store, self.claim)
        if base is not None:
            writer.build_on(base, {f"shards@rank{rank}"})
        parts = writer.write([component(rank, content, opaque=opaque)], order.directory)
        return record_of(parts, order, rank=rank, job="job", owner=current(), time=1.0, nbytes=len(content))

    def save(self, step: int, *contents: bytes, base: Commit | None = None, opaque: bool = False) -> Commit:
        order = self.run.checkpoints.order(meta(step))
        records = [
            self.write(rank, order, content, base=base, opaque=opaque and rank == 1)
            for rank, content in enumerate(contents)
        ]
        return self.run.checkpoints.write_parts((), meta(step), (), joint=Joint(order, tuple(records)))


def stored_bytes(repository: Repository) -> int:
    return sum(
        repository.store.size(key) for key in repository.store.list(layout.PACKS) if key.endswith(".pack")
    )


def test_one_manifest_names_the_parts_of_all(repository: Repository) -> None:
    with repository.writer(signing_key=lambda: KEY) as run:
        commit = Ranks(repository, run).save(1, noise(MINE, 1), noise(MINE, 2), opaque=True)
        found = repository.load(commit)
        assert [found.components[f"shards@rank{r}"].content(0).tobytes() for r in (0, 1)] == [
            noise(MINE, 1), noise(MINE, 2),
        ]  # fmt: skip
        manifest = repository.manifest(commit)
        assert len(manifest.ranks) == 2
        assert manifest.opaque == ["shards/pickle"]
        assert repository.signature_valid(commit, key=KEY) is True  # who commits vouches for all
        assert repository.verify(commit) == []
        assert_sound(repository)
        assert_swept(repository)


def test_what_the_base_holds_is_not_written_again(repository: Repository) -> None:
    with repository.writer() as run:
        ranks = Ranks(repository, run)
        first = ranks.save(1, noise(MINE, 1), noise(MINE, 2))
        before = stored_bytes(repository)
        second = ranks.save(2, noise(MINE, 1), noise(MINE, 3), base=first)
        assert MINE < stored_bytes(repository) - before < 2 * MINE
        assert repository.verify(second) == []
        # On no other ground: what no commit is known to need may be swept.
        before = stored_bytes(repository)
        ranks.save(3, noise(MINE, 1), noise(MINE, 3))
        assert stored_bytes(repository) - before > 2 * MINE


def test_a_base_that_cannot_be_read_is_not_relied_on(repository: Repository) -> None:
    with repository.writer() as run:
        ranks = Ranks(repository, run)
        first = ranks.save(1, noise(MINE, 1), noise(MINE, 2))
        repository.store.put(f"{first.directory}/{layout.document('shards@rank0', 'json')}", b"{}")
        writer = part_writer(repository.store, ranks.claim)
        with pytest.raises(CorruptObject):
            writer.build_on(first, {"shards@rank0"})
        before = stored_bytes(repository)
        writer.write([component(0, noise(MINE, 1))], "steps/step_000000000002-" + "0" * 12 + "e1")
        assert stored_bytes(repository) - before > MINE


def test_rows_that_were_not_captured_are_only_built_on_where_their_base_is_relied_on(
    repository: Repository,
) -> None:
    chunk, content = 4096, noise(64 * 4096, 1)
    directory = "steps/step_000000000002-" + "0" * 12 + "e1"

    def ring(*ranges: tuple[int, bytes], base: Base | None = None) -> Component:
        rows = tuple((start, np.frombuffer(part, np.uint8)) for start, part in ranges)
        node = Array(d="|u1", s=(len(content),), b=0, id=1)
        return Component(
            "shards@rank0", {"shards": Dict(v={"w": node})}, [Rows(len(content), chunk, rows, base)]
        )

    with repository.writer() as run:
        ranks = Ranks(repository, run)
        order = run.checkpoints.order(meta(1))
        whole = ring((0, content))
        parts = part_writer(repository.store, ranks.claim).write([whole], order.directory)
        record = record_of(parts, order, rank=0, job="job", owner=current(), time=1.0, nbytes=0)
        first = run.checkpoints.write_parts((), meta(1), (), joint=Joint(order, (record,)))
        changed = (chunk, noise(chunk, 2))
        writer = part_writer(repository.store, ranks.claim)
        with pytest.raises(CorruptObject, match=r"shards@rank0 may be gone\. The next save writes all"):
            writer.write([ring(changed, base=whole.saved[0])], directory)
        writer.build_on(first, {"shards@rank0"})
        assert writer.write([ring(changed, base=whole.saved[0])], directory)


def test_parts_for_which_nobody_commits_are_swept(repository: Repository) -> None:
    with repository.writer() as run:
        ranks = Ranks(repository, run)
        first = ranks.save(1, noise(MINE, 1), noise(MINE, 2))
        ranks.write(1, run.checkpoints.order(meta(2)), noise(MINE, 3), base=first)
        assert repository.commits() == [first]
        run.sweep()
        assert_swept(repository)
        assert repository.verify(first) == []


def test_a_part_under_a_claim_that_is_over_is_not_written(repository: Repository) -> None:
    with repository.writer() as run:
        ranks = Ranks(repository, run)
        order = run.checkpoints.order(meta(1))
    with repository.writer() as later:
        with pytest.raises(Fenced):
            ranks.write(1, order, noise(MINE, 1))
        claim = later.checkpoints.pen.claim
        assert fencing.is_here(repository.store, claim)
        assert not fencing.is_here(repository.store, fencing.Claim(claim.epoch, ranks.claim.write_id))


def test_another_place_is_not_the_run_that_was_claimed(repository: Repository, tmp_path: Path) -> None:
    other = Repository.open(tmp_path / "elsewhere", "job", create=True)
    with repository.writer() as run:
        assert not fencing.is_here(other.store, run.checkpoints.pen.claim)
