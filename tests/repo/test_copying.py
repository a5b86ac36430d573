"""Checkpoints are copied from one run to another, whole, once, and never with damage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from unbroken.errors import CorruptObject, RunBusy, StoreError, Untrusted
from unbroken.format import layout
from unbroken.format.compression import BlobCodec
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.copying import Copied, copy, copy_newest
from unbroken.repo.repository import Repository
from unbroken.store.base import ByteStore
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import Fault, FaultyStore, Kind, Stopped

from .states import assert_sound, assert_swept, meta, process, same, snapshot, tokens
from .training import Trained, When, at_read, compact, never, save_and_keep_one, source_run, trained

KEY, OTHER = b"k" * 32, b"o" * 32


def copy_all(source: Repository, store: ByteStore, *, life: int = 5, job: str = "copy") -> list[Copied]:
    target = Repository.over(store, job, create=True)
    with target.writer(owner=process(life), token=tokens(life)) as writer:
        return list(copy(source, source.commits()[::-1], target, writer))


def test_every_checkpoint_arrives_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    source, states = source_run()
    done = copy_all(source, LocalStore(tmp_path / "copy"))
    target = Repository.open(tmp_path, "copy")
    assert [one.target for one in done][::-1] == target.commits()
    assert_sound(target)
    assert_swept(target)
    for one, state in zip(done, states, strict=True):
        assert same(target.load(one.target), state)
        assert target.manifest(one.target).documents == source.manifest(one.source).documents
        assert target.manifest(one.target).blobs == source.manifest(one.source).blobs
        for name in ("step", "segment", "position", "time", "metrics", "good", "birth"):
            assert getattr(one.target, name) == getattr(one.source, name)
        theirs, ours = source.meta(one.source), target.meta(one.target)
        assert (ours.job, ours.episodes, ours.reason) == ("copy", 7, theirs.reason)
        assert target.birth(one.target) == source.birth(one.source) is not None


def test_only_what_the_target_lacks_is_written() -> None:
    source, _ = source_run()
    store = MemoryStore()
    first, second, third = copy_all(source, store)
    assert first.nbytes > second.nbytes > 20_000 + 10 * 4096
    assert abs(second.nbytes - third.nbytes) < 1000
    before = {key: store.get(key) for key in store.list(layout.PACKS)}
    assert [one.was_there for one in copy_all(source, store, life=6)] == [True] * 3
    assert {key: store.get(key) for key in store.list(layout.PACKS)} == before


def test_stored_bytes_are_not_compressed_again() -> None:
    source, _ = source_run()
    store = MemoryStore()
    copy_all(source, store)

    def codecs(of: ByteStore) -> dict[str, BlobCodec]:
        index = BlobIndex(of)
        index.refresh()
        return {entry.digest: entry.codec for found in index.packs.values() for entry in found.entries}

    assert codecs(store) == codecs(source.store)
    assert BlobCodec.GZIP in codecs(store).values(), "zeros of the empty ring"


def test_an_interrupted_copy_goes_on_where_it_stopped() -> None:
    source, states = source_run()
    counting = FaultyStore(MemoryStore())
    copy_all(source, counting)
    for kind in (Kind.STOP_BEFORE, Kind.STOP_AFTER, Kind.TORN, Kind.UNAVAILABLE, Kind.LOST_RESPONSE):
        for at in range(0, len(counting.operations), 2):
            store = MemoryStore()
            with contextlib.suppress(Stopped, StoreError):
                copy_all(source, FaultyStore(store, fault=Fault(kind, at)))
            there = Repository.over(store, "copy", create=True).commits()
            assert_sound(Repository.over(store, "copy"))
            done = copy_all(source, store, life=6)
            target = Repository.over(store, "copy")
            assert sum(one.was_there for one in done) == len(there)
            assert len(target.commits()) == 3, "none twice"
            if not target.broken():  # a torn commit record keeps what it might need
                assert_swept(target)
            assert same(target.load(target.commits()[0]), states[2])


def test_damage_is_not_copied() -> None:
    source, _ = source_run()
    largest = max(
        (key for key in source.store.list(layout.PACKS) if key.endswith(".pack")), key=source.store.size
    )
    data = bytearray(source.store.get(largest))
    data[len(data) // 2] ^= 1
    source.store.put(largest, bytes(data))
    store = MemoryStore()
    with pytest.raises(CorruptObject, match=largest):
        copy_all(Repository.over(source.store, "job"), store)
    target = Repository.over(store, "copy")
    assert_sound(target)
    assert_swept(target)


class TestWhileTheSourceTrains:
    def run(self, train: Callable[[ByteStore], None], when: When = never) -> Repository:
        return trained(train, when)

    def reads(self, do: Callable[[Repository], object]) -> int:
        """Return how often the source is read without any training."""
        source = self.run(compact)
        do(source)
        assert isinstance(source.store, Trained)
        return source.store.reads

    def newest(self, source: Repository) -> tuple[Copied | None, Repository]:
        target = Repository.over(MemoryStore(), "copy", create=True)
        with target.writer(owner=process(5), token=tokens(5)) as writer:
            return copy_newest(source, target, writer), target

    def test_the_newest_is_the_newest_that_can_be_had(self) -> None:
        for at in range(self.reads(self.newest)):
            one, target = self.newest(self.run(save_and_keep_one, at_read(at)))
            assert one is not None
            assert one.source.step == 3
            assert same(target.load(one.target), snapshot(step=3))
            assert_sound(target)
            assert_swept(target)

    def test_of_all_those_that_are_gone_are_passed_over(self) -> None:
        _, states = source_run()
        counts = set[int]()
        for at in range(1, self.reads(lambda source: copy_all(source, MemoryStore()))):
            store = MemoryStore()
            done = copy_all(self.run(save_and_keep_one, at_read(at)), store)
            target = Repository.over(store, "copy", create=True)
            assert_sound(target)
            for one in done:
                if one.source.step < 3:
                    assert same(target.load(one.target), states[one.source.step])
            counts.add(len(done))
        assert counts == {0, 1, 2}

    def test_blobs_are_found_where_a_compaction_has_moved_them(self) -> None:
        original, states = source_run()
        before = set(original.store.list(layout.PACKS))
        for at in range(self.reads(self.newest)):
            source = self.run(compact, at_read(at))
            one, target = self.newest(source)
            assert before - set(source.store.list(layout.PACKS))
            assert one is not None
            assert one.source.step == 2
            assert same(target.load(one.target), states[2])

    def test_a_run_that_keeps_too_few_is_said_to(self) -> None:
        source = self.run(save_and_keep_one, lambda _, key: key.endswith(layout.MANIFEST))
        with pytest.raises(RunBusy, match="before they can be copied"):
            self.newest(source)

    def test_a_run_without_checkpoints_gives_none(self) -> None:
        one, _ = self.newest(Repository.over(MemoryStore(), "job", create=True))
        assert one is None

    @pytest.mark.parametrize("name", [layout.MANIFEST, layout.META])
    def test_what_is_missing_from_a_checkpoint_that_counts_is_damage(self, name: str) -> None:
        source = self.run(compact)
        key = f"{source.commits()[0].directory}/{name}"
        source.store.delete(key)
        with pytest.raises(CorruptObject, match=f"{key} is missing"):
            self.newest(source)


def test_a_copy_that_was_damaged_since_is_made_anew() -> None:
    source, states = source_run()
    store = MemoryStore()
    copy_all(source, store)
    for key in store.list(layout.PACKS):
        if key.endswith(".idx"):
            store.delete(key)
            break
    done = copy_all(source, store, life=6)
    assert any(not one.was_there for one in done)
    target = Repository.over(store, "copy")
    assert same(target.load(done[-1].target), states[2])


class TestPickles:
    def run(self, *, signed_by: bytes | None) -> Repository:
        repository = Repository.over(MemoryStore(), "job", create=True)
        with repository.writer(owner=process(1), token=tokens(1), signing_key=lambda: signed_by) as writer:
            writer.write(snapshot(opaque=True), meta(1))
        return repository

    def copied(self, source: Repository) -> tuple[Repository, bool | None]:
        target = Repository.over(MemoryStore(), "job", create=True)
        with target.writer(owner=process(5), token=tokens(5), signing_key=lambda: KEY) as writer:
            (one,) = copy(source, source.commits(), target, writer)
        return target, target.signature_valid(one.target, key=KEY)

    def test_what_we_have_signed_is_signed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UNBROKEN_KEY", KEY.decode())
        _, valid = self.copied(self.run(signed_by=KEY))
        assert valid is True

    def test_what_nobody_has_signed_stays_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UNBROKEN_KEY", KEY.decode())
        target, valid = self.copied(self.run(signed_by=None))
        assert valid is False, "a copy is no way to make a stranger's pickle ours"
        assert target.manifest(target.commits()[0]).signature is None

    def test_what_another_has_signed_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UNBROKEN_KEY", KEY.decode())
        with pytest.raises(Untrusted, match="another key"):
            self.copied(self.run(signed_by=OTHER))


def test_the_source_is_not_touched() -> None:
    source, _ = source_run()
    before = {key: source.store.get(key) for key in source.store.list()}
    copy_all(source, MemoryStore())
    assert {key: source.store.get(key) for key in source.store.list()} == before
