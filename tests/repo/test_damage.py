"""One flipped bit, a cut, a missing object: everywhere in the newest checkpoint, on real files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from unbroken.errors import CorruptObject
from unbroken.format import layout
from unbroken.format import manifest as manifests
from unbroken.format.compression import BlobCodec, Compression
from unbroken.format.digest import digest_of
from unbroken.format.document import CHUNK
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.seal import seal
from unbroken.store.memory import MemoryStore
from unbroken.types import Epoch

from .states import meta, noise, same, snapshot, tokens

SHARED = noise(2 * CHUNK, 1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two checkpoints that share the replay buffer."""
    repository = Repository.open(tmp_path, "job", create=True)
    for number, codec in enumerate([BlobCodec.RAW, BlobCodec.GZIP]):
        with repository.writer(token=tokens(number), compression=Compression(codec)) as writer:
            # GZIP's header has bits that no decompression looks at: the worst case for a flipped bit
            weights = noise(3000, number) + b"w" * 20_000
            writer.write(snapshot(weights, SHARED, step=number), meta(number))
    return tmp_path / "job"


def newest_objects(run: Path) -> list[Path]:
    """Every file of the newest checkpoint that the one before does not need."""
    newest = Repository.open(run.parent, "job").commits()[0]
    packs = [path for path in (run / "packs").rglob("*") if path.is_file() and path.stem.endswith("e2")]
    found = [
        run / layout.commit(newest.sequence),
        *sorted((run / newest.directory).iterdir()),
        *sorted(packs),
    ]
    assert len(found) >= 1 + 5 + 2
    return found


def fresh(run: Path) -> Repository:
    return Repository.open(run.parent, "job")


def assert_noticed(run: Path, path: Path, newest: Commit, older: Commit) -> None:
    key = str(path.relative_to(run))
    repository = fresh(run)
    faults = repository.verify(newest)
    if path.suffix == ".idx":
        # The pack says the same: the damage is told and costs nothing.
        assert faults == []
        assert [fault.key for fault in repository.broken()] == [key]
        assert same(repository.load(newest), snapshot(noise(3000, 1) + b"w" * 20_000, SHARED, step=1))
        return
    assert key in {fault.key for fault in faults}, f"{key} is not named by {faults}"
    assert all(fault.problem for fault in faults)
    if key == layout.commit(newest.sequence):
        assert key in {fault.key for fault in repository.broken()}
        assert repository.commits() == [older]
    else:
        with pytest.raises(CorruptObject) as caught:
            repository.load(newest)
        assert caught.value.key == key
    assert fresh(run).verify(older) == []
    assert same(fresh(run).load(older), snapshot(noise(3000, 0) + b"w" * 20_000, SHARED, step=0))


def test_one_flipped_bit_anywhere_is_named_and_the_checkpoint_before_is_whole(run: Path) -> None:
    newest, older = fresh(run).commits()
    random_bits = random.Random(5)
    for path in newest_objects(run):
        data = path.read_bytes()
        positions = {0, len(data) - 1, *(random_bits.randrange(len(data)) for _ in range(2))}
        for position in positions:
            flipped = bytearray(data)
            flipped[position] ^= 1 << random_bits.randrange(8)
            path.write_bytes(flipped)
            assert_noticed(run, path, newest, older)
        path.write_bytes(data)
    assert fresh(run).verify(newest) == []


@pytest.mark.parametrize("part", ["pack", "idx"])
def test_every_single_bit_of_a_small_pack_counts(part: str) -> None:
    store = MemoryStore()
    repository = Repository.over(store, "job", create=True)
    with repository.writer(compression=Compression(BlobCodec.GZIP)) as writer:
        state = snapshot(b"w" * 200, b"b" * 200)
        commit = writer.write(state, meta(1))
    (key,) = [key for key in store.list("packs") if key.endswith(part)]
    data = store.get(key)
    assert len(data) < 1000
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        store.put(key, bytes(flipped))
        damaged = Repository.over(store, "job")
        if part == "idx":  # its pack says the same
            assert same(damaged.load(commit), state)
            assert [fault.key for fault in damaged.broken()] == [key]
            continue
        with pytest.raises(CorruptObject):
            damaged.load(commit)


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\n",
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_off_object_is_named(run: Path, cut: str) -> None:
    newest, older = fresh(run).commits()
    for path in newest_objects(run):
        data = path.read_bytes()
        path.write_bytes(CUTS[cut](data))
        assert_noticed(run, path, newest, older)
        path.write_bytes(data)


def test_a_missing_object_is_named(run: Path) -> None:
    newest, older = fresh(run).commits()
    for path in newest_objects(run):
        data = path.read_bytes()
        path.unlink()
        repository = fresh(run)
        if path.suffix == ".json" and path.parent.name == "commits":
            assert repository.commits() == [older]
        else:
            faults = repository.verify(newest)
            assert faults
            if path.suffix != ".idx":
                assert str(path.relative_to(run)) in {fault.key for fault in faults}
            with pytest.raises(CorruptObject):
                repository.load(newest)
        assert fresh(run).verify(older) == []
        path.write_bytes(data)


def test_a_fault_names_component_and_digest(run: Path) -> None:
    newest, _ = fresh(run).commits()
    for name in ("policy_weights", "replay_buffer", "counters"):
        path = run / newest.directory / f"{name}.json"
        data = path.read_bytes()
        path.write_bytes(data.replace(b"model", b"mOdel", 1))
        (fault,) = [fault for fault in fresh(run).verify(newest) if fault.key.endswith(f"{name}.json")]
        assert fault.component == name
        assert fault.digest == fresh(run).manifest(newest).documents[f"{name}.json"].digest
        assert f"({name})" in str(fault)
        path.write_bytes(data)


def test_damage_in_a_shared_blob_is_found_in_both_and_healed_by_the_next_save(run: Path) -> None:
    newest, older = fresh(run).commits()
    big = max((run / "packs").rglob("*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(big.read_bytes())
    data[CHUNK] ^= 1
    big.write_bytes(data)
    repository = fresh(run)
    for commit in (newest, older):
        (fault,) = repository.verify(commit)
        assert (fault.component, fault.key) == ("replay_buffer", str(big.relative_to(run)))
        assert fault.digest in repository.manifest(commit).blobs
    with repository.writer(token=tokens(7)) as writer:
        state = snapshot(b"other", SHARED, step=9)
        after = writer.write(state, meta(9))
    assert same(fresh(run).load(after), state), "the damaged blob was written again, not reused"
    assert fresh(run).verify(newest) == [], "and the old checkpoints find it there"


@pytest.mark.parametrize("how", ["missing", "cut off", "without index"])
def test_an_unusable_pack_is_not_built_on(run: Path, how: str) -> None:
    big = max((run / "packs").rglob("*.pack"), key=lambda path: path.stat().st_size)
    if how == "missing":
        big.unlink()
    elif how == "cut off":
        big.write_bytes(big.read_bytes()[:CHUNK])
    else:
        big.with_suffix(".idx").unlink()
    repository = fresh(run)
    with repository.writer(token=tokens(7)) as writer:
        state = snapshot(b"other", SHARED, step=9)
        after = writer.write(state, meta(9))
    assert same(fresh(run).load(after), state)


@pytest.mark.parametrize("kind", ["*.pack", "*.idx"])
def test_a_pack_that_somebody_deletes_while_the_run_goes_on_is_not_built_on(
    tmp_path: Path, kind: str
) -> None:
    repository = Repository.open(tmp_path, "job", create=True)
    with repository.writer() as writer:
        writer.write(snapshot(b"w", SHARED, step=1), meta(1))
        for path in (tmp_path / "job" / "packs").rglob(kind):
            path.unlink()
        writer.retain(plan_retention(repository.commits(), keep_last=5))
        state = snapshot(b"x", SHARED, step=2)
        commit = writer.write(state, meta(2))
    assert repository.verify(commit) == []
    assert same(repository.load(commit), state)


def test_a_pack_whose_index_is_lost_stays_while_it_is_needed(run: Path) -> None:
    newest, _ = fresh(run).commits()
    big = max((run / "packs").rglob("*.pack"), key=lambda path: path.stat().st_size)
    index = big.with_suffix(".idx").read_bytes()
    for damaged in (b"", None):
        if damaged is None:
            big.with_suffix(".idx").unlink()
        else:
            big.with_suffix(".idx").write_bytes(damaged)
        with fresh(run).writer(token=tokens(7)) as writer:
            writer.sweep()
        assert big.exists(), "the index can be made anew from the pack"
    big.with_suffix(".idx").write_bytes(index)
    assert fresh(run).verify(newest) == []


def test_a_pickle_that_the_manifest_hides_is_refused() -> None:
    """Somebody leaves the pickle out of the manifest, so that no signature seems to be needed."""
    store = MemoryStore()
    repository = Repository.over(store, "job", create=True)
    with repository.writer(signing_key=lambda: b"k" * 32) as writer:
        commit = writer.write(snapshot(opaque=True), meta(1))
    forged = msgspec.structs.replace(repository.manifest(commit), opaque=[], signature=None)
    data = manifests.encode(forged)
    store.put(f"{commit.directory}/{layout.MANIFEST}", data)
    commit = msgspec.structs.replace(commit, manifest_digest=digest_of(data))
    store.put(layout.commit(commit.sequence), seal(commit))
    repository = Repository.over(store, "job")
    assert repository.signature_valid(repository.commits()[0]) is None
    with pytest.raises(CorruptObject, match="model/callback"):
        repository.load(commit)
    assert [fault.component for fault in repository.verify(commit)] == ["counters"]
    assert list(repository.load(commit, ["policy_weights"]).components) == ["policy_weights"]


def test_a_document_that_lies_about_its_component_is_refused(run: Path) -> None:
    """Somebody swaps two documents and knows the format, but not how to forge a digest."""
    newest, _ = fresh(run).commits()
    a, b = run / newest.directory / "counters.json", run / newest.directory / "policy_weights.json"
    content = a.read_bytes(), b.read_bytes()
    a.write_bytes(content[1])
    b.write_bytes(content[0])
    with pytest.raises(CorruptObject):
        fresh(run).load(newest)


def test_a_damaged_record_keeps_everything_until_it_is_past_its_time(run: Path) -> None:
    newest, _ = fresh(run).commits()
    record = run / layout.commit(newest.sequence)
    data = record.read_bytes()
    record.write_bytes(data[:-20])
    repository = fresh(run)
    with repository.writer(token=tokens(8)) as writer:
        writer.sweep()
        writer.write(snapshot(noise(3000, 5), SHARED, step=5), meta(5))
        writer.retain(plan_retention(repository.commits(), keep_last=2))
        assert (run / newest.directory).is_dir(), "a person may still repair the record"
        record.write_bytes(data)
        assert fresh(run).verify(newest) == []
        record.write_bytes(data[:-20])
        writer.write(snapshot(noise(3000, 6), SHARED, step=6), meta(6))
        writer.retain(plan_retention(repository.commits(), keep_last=2))
    assert not record.exists()
    assert not (run / newest.directory).exists()


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"record": "format", "ver', b"\x00" * 50])
def test_a_damaged_format_record_costs_no_checkpoint(run: Path, damage: bytes) -> None:
    before = fresh(run).commits()
    (run / layout.FORMAT).write_bytes(damage)
    reader = fresh(run)
    assert reader.commits() == before
    assert [fault.key for fault in reader.broken()] == [layout.FORMAT]
    with Repository.open(run.parent, "job", create=True).writer(token=tokens(7)) as writer:
        writer.write(snapshot(b"next", SHARED, step=2), meta(2))
    mended = fresh(run)
    assert mended.broken() == []
    assert [commit.step for commit in mended.commits()] == [2, 1, 0]


def test_a_removed_claim_leaves_its_number_taken(run: Path) -> None:
    (run / layout.epoch(Epoch(2))).unlink()
    with fresh(run).writer(token=tokens(7)) as writer:
        assert writer.epoch == 3
        writer.write(snapshot(b"next", SHARED, step=2), meta(2))
    assert [commit.step for commit in fresh(run).commits()] == [2, 1, 0]
