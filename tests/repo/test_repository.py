from __future__ import annotations

import math
import os
import pickle
import re
from pathlib import Path

import pytest

from unbroken.errors import ConfigError, CorruptObject, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.compression import BlobCodec, Compression
from unbroken.format.document import CHUNK
from unbroken.format.records import HistoryRecord
from unbroken.repo.repository import Repository, jobs
from unbroken.repo.retention import plan_retention
from unbroken.repo.seal import seal_json
from unbroken.store.memory import MemoryStore
from unbroken.store.publish import TEMPORARY
from unbroken.testing.faulty_store import FaultyStore
from unbroken.types import Epoch, Fidelity, Step

from .states import clock, meta, noise, process, same, snapshot, tokens


@pytest.fixture
def repository() -> Repository:
    return Repository.over(MemoryStore(), "job", create=True)


def test_what_is_written_comes_back(repository: Repository) -> None:
    state = snapshot(noise(2 * CHUNK + 7, 1), b"b" * 5000, step=12)
    with repository.writer(clock=clock, token=tokens()) as writer:
        commit = writer.write(state, meta(12, metrics={"reward": 1.5}))
    assert repository.commits() == [commit]
    assert (commit.sequence, commit.step, commit.epoch, commit.metrics) == (1, 12, 1, {"reward": 1.5})
    loaded = repository.load(commit)
    assert same(loaded, state)
    assert loaded.promises == state.promises
    assert loaded.counters == {"episodes": 3}
    assert repository.verify(commit) == []
    assert repository.broken() == []


def test_metadata_is_completed(repository: Repository) -> None:
    with repository.writer(clock=clock, token=tokens(), owner=process(7)) as writer:
        found = repository.meta(writer.write(snapshot(step=3), meta(3, reason="asked")))
    assert (found.job, found.pid, found.host, found.time) == ("job", 7, "elsewhere", clock())
    assert found.reason == "asked"
    assert found.bytes == 3004
    assert found.fidelity["replay_buffer"].fidelity is Fidelity.APPROXIMATE
    assert found.fidelity["replay_buffer"].reason == "why"


def test_metrics_need_not_be_finite(repository: Repository) -> None:
    with repository.writer() as writer:
        writer.write(snapshot(), meta(1, metrics={"loss": math.nan, "reward": -math.inf}))
    (commit,) = repository.commits()
    assert math.isnan(commit.metrics["loss"])
    assert commit.metrics["reward"] == -math.inf
    assert repository.verify(commit) == []


def test_a_loaded_state_is_the_callers_own(repository: Repository) -> None:
    state = snapshot(b"w" * 3000)
    with repository.writer() as writer:
        commit = writer.write(state, meta(0))
    repository.load(commit).components["policy_weights"].content(0)[:] = 0
    assert same(repository.load(commit), state)


def test_components_load_alone(repository: Repository) -> None:
    with repository.writer() as writer:
        commit = writer.write(snapshot(buffer=noise(CHUNK, 5)), meta(0))
    counting = _Reads()
    _copy(repository.store, counting)
    alone = Repository.over(counting, "job").load(commit, ["policy_weights"])
    assert list(alone.components) == ["policy_weights"]
    assert counting.bytes_read < CHUNK // 2, "the replay buffer was not read"


def test_an_unknown_component_is_named(repository: Repository) -> None:
    with repository.writer() as writer:
        commit = writer.write(snapshot(), meta(0))
    with pytest.raises(ConfigError, match=r"no component 'optimizer'.*policy_weights"):
        repository.load(commit, ["optimizer"])


def test_unchanged_chunks_are_written_once(repository: Repository) -> None:
    store = repository.store
    buffer = noise(8 * CHUNK, 2)
    changed = buffer[: 3 * CHUNK] + b"x" + buffer[3 * CHUNK + 1 :]
    with repository.writer() as writer:
        writer.write(snapshot(buffer=buffer), meta(1))
        first = _bytes_in_packs(store)
        commit = writer.write(snapshot(buffer=changed), meta(2))
        assert CHUNK < _bytes_in_packs(store) - first < CHUNK + 10_000, "one of eight chunks is new"
    with repository.writer() as writer:
        before = _bytes_in_packs(store)
        again = writer.write(snapshot(buffer=changed, step=7), meta(3))
        assert _bytes_in_packs(store) - before < 10_000, "also by a process that starts anew"
    assert same(repository.load(commit), snapshot(buffer=changed))
    assert same(repository.load(again), snapshot(buffer=changed, step=7))


def test_a_dropped_checkpoint_frees_only_what_no_other_needs(repository: Repository) -> None:
    store = repository.store
    buffer = noise(2 * CHUNK, 3)
    with repository.writer() as writer:
        writer.write(snapshot(weights=noise(2 * CHUNK, 4), buffer=buffer), meta(1))
        kept = writer.write(snapshot(weights=noise(2 * CHUNK, 5), buffer=buffer), meta(2))
        before = _bytes_in_packs(store)
        writer.retain(plan_retention(repository.commits(), keep_last=1))
    assert repository.commits() == [kept]
    assert repository.verify(kept) == []
    freed = before - _bytes_in_packs(store)
    assert 2 * CHUNK < freed < 2 * CHUNK + 10_000, "the old weights, and not the buffer that is shared"


@pytest.mark.parametrize(
    "compression", [Compression(BlobCodec.GZIP), Compression(BlobCodec.ZSTD, 3), Compression(BlobCodec.RAW)]
)
@pytest.mark.parametrize("fmt", ["json", "msgpack"])
def test_all_encodings_come_back(repository: Repository, compression: Compression, fmt: str) -> None:
    state = snapshot(b"w" * CHUNK + noise(CHUNK, 1), b"")
    with repository.writer(compression=compression, document_format=fmt) as writer:  # type: ignore[arg-type]
        commit = writer.write(state, meta(1))
    assert same(repository.load(commit), state)
    assert repository.verify(commit) == []
    assert any(key.endswith(f"counters.{fmt}") for key in repository.store.list("steps"))


def test_hints_and_pending(repository: Repository) -> None:
    assert repository.pending() is None
    with repository.writer(clock=clock, owner=process(9)) as writer:
        writer.mark_pending(Step(40), "signal", segment=1)
        pending = repository.pending()
        assert pending is not None
        assert (pending.step, pending.reason, pending.segment, pending.pid) == (40, "signal", 1, 9)
        commit = writer.write(snapshot(), meta(40))
        assert repository.pending() is None
    assert repository.store.get(layout.LATEST).decode() == f"{commit.directory}\n"


def test_who_closes_the_run_takes_away_what_a_kill_has_left_of_a_save_that_is_there(
    repository: Repository,
) -> None:
    with repository.writer() as killed:
        killed.mark_pending(Step(40), "schedule", segment=1)
        noted = repository.store.get(layout.PENDING)
        killed.write(snapshot(), meta(40, segment=1))
    repository.store.put(layout.PENDING, noted)  # the kill came between the commit and this
    repository.writer().close()
    assert layout.PENDING not in repository.store.list("")


@pytest.mark.parametrize(("step", "segment"), [(50, 1), (40, 0)])
def test_what_tells_of_a_save_that_is_not_there_stays(
    repository: Repository, step: int, segment: int
) -> None:
    with repository.writer() as writer:
        writer.write(snapshot(), meta(40, segment=1))
        writer.mark_pending(Step(step), "schedule", segment=segment)
    repository.writer().close()
    pending = repository.pending()
    assert pending is not None
    assert (pending.step, pending.segment) == (step, segment)


def test_a_note_that_is_torn_goes_with_the_next_who_closes_the_run(repository: Repository) -> None:
    repository.store.put(layout.PENDING, b'{"job": "jo')
    repository.writer().close()
    assert repository.pending() is None


def test_a_damaged_pending_record_is_not_taken_for_none(repository: Repository) -> None:
    repository.store.put(layout.PENDING, b"{}")
    with pytest.raises(CorruptObject):
        repository.pending()


def test_history_grows_and_survives_a_cut(repository: Repository) -> None:
    assert repository.history() == []
    with repository.writer() as writer:
        writer.append_history(HistoryRecord(event="start", tier="fresh"))
        data = repository.store.get(layout.HISTORY)
        repository.store.put(layout.HISTORY, data + b'{"half a li')
        writer.append_history(HistoryRecord(event="start", tier="newest", sequence=3))
    assert [record.tier for record in repository.history()] == ["fresh", "newest"]


def test_one_document_is_read_and_checked_without_its_arrays(repository: Repository) -> None:
    with repository.writer(clock=clock, token=tokens()) as writer:
        commit = writer.write(snapshot(noise(500, 1)), meta(1))
    for key in repository.store.list(layout.PACKS):
        repository.store.delete(key)
    found = repository.document(commit, "policy_weights")
    assert found.roots == snapshot(noise(500, 1)).components["policy_weights"].roots
    assert [blob.size for blob in found.blobs] == [500]
    with pytest.raises(ConfigError, match="no component"):
        repository.document(commit, "nothing")
    key = f"{commit.directory}/policy_weights.json"
    repository.store.put(key, repository.store.get(key).replace(b"2.5", b"2.6"))
    with pytest.raises(CorruptObject, match="digest"):
        repository.document(commit, "policy_weights")


def test_a_writer_remembers_only_the_commits_that_are_there(repository: Repository) -> None:
    with repository.writer() as writer:
        sizes: list[int] = []
        books = writer.checkpoints
        for step in range(30):
            writer.write(snapshot(noise(5000, step), step=step), meta(step))
            writer.retain(plan_retention(repository.commits(), keep_last=2))
            sizes.append(len(pickle.dumps((books._references, books.index.packs, books.index.condemned))))
    assert max(sizes[3:]) < sizes[2] + 100, "a record of one commit is larger"


def test_records_that_never_change_are_read_once(repository: Repository) -> None:
    for number in range(5):
        repository.writer(owner=process(number)).close()
    counting = FaultyStore(repository.store, counted=frozenset({"get"}))
    reading = Repository(counting, "job")
    reading.commits()
    reading.commits()
    reading.broken()
    read = [operation.key for operation in counting.operations if operation.key != layout.LOW_WATER]
    assert read == [layout.epoch_start(Epoch(number)) for number in range(1, 6)]


def test_runs_below_a_root(tmp_path: Path) -> None:
    assert jobs(tmp_path / "nothing") == []
    Repository.open(tmp_path, "b", create=True)
    Repository.open(tmp_path, "a", create=True)
    (tmp_path / "notes.txt").write_text("foreign")
    (tmp_path / "empty").mkdir()
    assert jobs(tmp_path) == ["a", "b"]


def test_a_missing_run_is_created_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"There is no run 'job' in {re.escape(str(tmp_path))}\\. Check"):
        Repository.open(tmp_path, "job")
    assert list(tmp_path.iterdir()) == []
    Repository.open(tmp_path, "job", create=True)
    Repository.open(tmp_path, "job")


@pytest.mark.parametrize("root", ["", "ftp://host/x"])
def test_an_unusable_root_is_refused(root: str) -> None:
    with pytest.raises(ConfigError, match="root"):
        Repository.open(root, "job", create=True)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        Repository.open(path, "job", create=True)
    with pytest.raises(ConfigError, match="is a file"):
        jobs(path)


def test_a_run_of_a_newer_version_is_refused() -> None:
    store = MemoryStore()
    store.put(layout.FORMAT, seal_json(b'{"record": "format", "version": 99}'))
    with pytest.raises(UnsupportedFormat, match="99"):
        Repository.over(store, "job")
    store.put(layout.FORMAT, seal_json(b'{"record": "format", "version": 0, "mandatory": ["shards"]}'))
    with pytest.raises(UnsupportedFormat, match="shards"):
        Repository.over(store, "job")


def test_a_damaged_format_record_stops_where_nothing_else_tells_the_version() -> None:
    store = MemoryStore()
    store.put(layout.FORMAT, b'{"record": "fo')
    with pytest.raises(CorruptObject):
        Repository.over(store, "job")
    repository = Repository.over(store, "job", create=True)
    with repository.writer() as writer:
        writer.write(snapshot(), meta(1))
    store.put(layout.FORMAT, b'{"record": "fo')
    for key in store.list(layout.COMMITS):
        store.put(key, b"nothing that can be read")
    with pytest.raises(CorruptObject):
        Repository.over(store, "job", create=True)


def test_a_write_that_was_cut_off_leaves_no_file_behind(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, "job", create=True)
    leftover = tmp_path / "job" / "packs" / "ab" / f"{TEMPORARY}cut-off"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half a pack")
    with repository.writer() as writer:
        assert not leftover.exists()
        leftover.parent.mkdir(parents=True, exist_ok=True)
        leftover.write_bytes(b"of another thread")
        writer.sweep()
        assert leftover.exists()


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, "job", create=True)
    foreign = [tmp_path / "job" / name for name in ("notes.txt", "steps/notes.txt", "packs/ab/mine.pack")]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("keep me")
    with repository.writer() as writer:
        writer.write(snapshot(), meta(1))
        writer.retain(plan_retention(repository.commits(), keep_last=1))
    assert [path.read_text() for path in foreign] == ["keep me"] * 3


def test_only_the_owner_can_read_what_is_written(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        repository = Repository.open(tmp_path / "root", "job", create=True)
        with repository.writer() as writer:
            writer.write(snapshot(), meta(1))
    finally:
        os.umask(before)
    for path in (tmp_path / "root").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


class TestPickles:
    KEY = b"k" * 32

    def write(self, repository: Repository, *, key: bytes | None, opaque: bool = True) -> None:
        with repository.writer(signing_key=lambda: key) as writer:
            writer.write(snapshot(opaque=opaque), meta(1))

    def test_they_are_listed_and_signed(self, repository: Repository) -> None:
        self.write(repository, key=self.KEY)
        (commit,) = repository.commits()
        assert repository.manifest(commit).opaque == ["model/callback"]
        assert repository.signature_valid(commit, key=self.KEY) is True
        assert repository.signature_valid(commit, key=b"x" * 32) is False
        assert same(repository.load(commit), snapshot(opaque=True)), "returned as bytes, not executed"

    def test_without_a_key_they_are_unsigned_and_not_valid(self, repository: Repository) -> None:
        self.write(repository, key=None)
        assert repository.signature_valid(repository.commits()[0], key=self.KEY) is False

    def test_an_ordinary_checkpoint_needs_no_key(self, repository: Repository) -> None:
        def no_key() -> bytes:
            raise AssertionError("the key was asked for")

        with repository.writer(signing_key=no_key) as writer:
            commit = writer.write(snapshot(), meta(1))
        assert repository.signature_valid(commit, key=self.KEY) is None


class _Reads(MemoryStore):
    bytes_read = 0

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self.bytes_read += len(data)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = MemoryStore.get(self, key)[offset : offset + length]
        self.bytes_read += len(data)
        return data

    def size(self, key: str) -> int:
        return len(MemoryStore.get(self, key))


def _copy(source: object, target: MemoryStore) -> None:
    assert isinstance(source, MemoryStore)
    for key in source.list():
        target.put(key, source.get(key))


def _bytes_in_packs(store: object) -> int:
    assert isinstance(store, MemoryStore)
    return sum(store.size(key) for key in store.list("packs"))
