"""Every decoder: what it is given, where its inputs start from, and how they are changed.

A decoder here is what a reader does with bytes of a run, as far as it goes without the store around it. Whoever adds a
decoder to the package adds it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

import msgspec
import numpy as np

from fuzz import mutations, seeds
from fuzz.mutations import Mutation
from unbroken.adapters.nemo_gym.frames import Frames
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.configuration import file as configuration
from unbroken.engine.configuration import place
from unbroken.errors import CorruptObject, UnbrokenError
from unbroken.format import chunks, document, layout, manifest, meta, neutral, pack, ranks, records, wire
from unbroken.format.chunks import read_list, shape
from unbroken.format.compression import BlobCodec, decompress
from unbroken.format.digest import digest_of
from unbroken.format.manifest import DocumentFormat
from unbroken.format.records import HistoryRecord
from unbroken.inspection.target import split
from unbroken.repo import birth
from unbroken.repo.names import check_job
from unbroken.repo.opaque import opaque_places
from unbroken.repo.roots import root_of
from unbroken.repo.seal import unseal
from unbroken.state import dtypes, pickles
from unbroken.state.places import frame_of
from unbroken.state.snapshot import Component, Snapshot
from unbroken.store.base import check_key, check_prefix
from unbroken.types import Digest

NAMED = frozenset({"fractions.Fraction", "numpy.ndarray", "builtins.range"})
"""The classes that a person has named for pickles. Fractions say no to most of what they are given."""
KEY = b"k" * 32


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder. `share`: its part of all inputs, as others have 1."""

    name: str
    decode: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Mutation
    share: float = 1.0


def _record(data: bytes) -> object:
    kinds = seeds.kinds()
    try:
        tag = msgspec.json.decode(data, type=_Tag).record
    except (msgspec.MsgspecError, ValueError, RecursionError):
        tag = ""
    kind = kinds.get(tag, records.Commit)
    found = unseal(data, kind, key="record.json")
    if isinstance(found, ranks.RankRecord):
        ranks.is_vouched_for(found, KEY)
    return found


class _Tag(msgspec.Struct):
    record: str = ""


def _manifest(data: bytes) -> object:
    found = manifest.decode(data)
    manifest.signature_valid(found, KEY)
    return manifest.encode(found)


def _history(data: bytes) -> object:
    return wire.decode(data, HistoryRecord, key=layout.HISTORY)


def _document(fmt: DocumentFormat) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        found = document.decode(data, fmt)
        named = [*opaque_places(found.roots)]
        for ref in found.blobs:
            for _ in zip(range(100), ref.named(), strict=False):
                pass
        return named

    return decode


def _birth(data: bytes) -> object:
    return birth.decode(data, digest_of(data), key="births/x.json")


class _Part:
    """What a program has where a checkpoint has something."""

    def __init__(self) -> None:
        self.number, self.text, self.values = 1, "x", [1.0, 2.0]
        self.array = np.zeros((4, 3), np.float32)
        self.table: dict[object, object] = {"a": 1, 2: (3, None)}
        self.generator = np.random.default_rng(0)


def _program() -> GraftSource:
    part = _Part()
    return GraftSource({"model": part, "env": {"again": part.array}}, policy_of_loaded())


def _laid_over(data: bytes) -> object:
    """Lay a document over a program, and write it there."""
    found = document.decode(data, "msgpack")
    blobs = [np.zeros(min(ref.size, 1 << 16), np.uint8) for ref in found.blobs]
    saved = Snapshot({found.component: Component(found.component, roots=found.roots, blobs=[*blobs])})
    graft = _program().plan(saved, trusted=NAMED)
    graft.apply()
    return graft


def _captured() -> list[bytes]:
    """Return programs as documents in MessagePack, their arrays inside."""
    found: list[bytes] = []
    for make in (_program, _other):
        snapshot = make().capture()
        roots = {place: node for one in snapshot.components.values() for place, node in one.roots.items()}
        found.append(document.encode(Component("counters", roots=roots), (), "msgpack"))
    return found


def _other() -> GraftSource:
    part = _Part()
    part.values, part.text = [0.5, float("nan"), 2.0], "y"
    part.array[1] = 7
    part.table.update({"b": {1, 2}, "c": np.arange(6)[::2], "d": bytearray(b"x")})
    return GraftSource({"model": part, "env": {"again": part.array.T}}, policy_of_loaded())


def _pack(data: bytes) -> object:
    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    first: UnbrokenError | None = None
    for entry in pack.scan(read, key="x.pack"):
        if entry.raw <= 1 << 20:
            try:
                pack.read_blob(data[entry.offset : entry.offset + entry.length], key="x.pack")
            except UnbrokenError as error:
                first = first or error
    index = pack.read_index(read, len(data), key="x.pack")
    if first is not None:
        raise first
    return index


def _index(data: bytes) -> object:
    index = pack.decode_index(data, key="x.idx")
    return layout.pack_name(layout.pack(index.pack))


def _chunk_list(data: bytes) -> object:
    count = max(1, int.from_bytes(data[:4], "little") % 70_000)
    held: dict[Digest, bytes] = {}
    at = 4
    for below in reversed([count, *shape(count)[:-1]]):  # as many nodes as there are, the root first
        for i in range(0, min(below, 600), chunks.FAN_OUT):
            size = chunks.node_size(min(chunks.FAN_OUT, below - i))
            node = data[at : at + size]
            held[digest_of(node)] = node
            at += size
    root = digest_of(data[4 : 4 + chunks.root_size(count)])

    def fetch(wanted: Mapping[Digest, int]) -> Mapping[Digest, bytes]:
        try:
            return {digest: held[digest] for digest in wanted}
        except KeyError as error:
            raise CorruptObject(f"{error} is missing.") from error

    return list(read_list(root, count, fetch))[:5]


def _blob(data: bytes) -> object:
    codecs = (*BlobCodec, "unknown")
    target = memoryview(bytearray(random_size(data)))
    decompress(codecs[data[0] % len(codecs)] if data else "raw", data[1:], target)
    return bytes(target[:16])


def random_size(data: bytes) -> int:
    """Return a size of a blob that hangs on its bytes: often one that fits."""
    return (300, 5000, 0, len(data) - 1, 1 << 16)[len(data) % 5] if data else 0


def _pickle(data: bytes) -> object:
    return pickles.load(data, NAMED)


def _dtype(data: bytes) -> object:
    return dtypes.parse(data.decode("utf-8", "replace"))


def _log(data: bytes) -> object:
    found = Frames(KEY).scan(lambda offset, count: data[offset : offset + count], len(data))
    if not found.intact:
        raise CorruptObject("Not one line can be read.")
    return found


def _logs() -> list[bytes]:
    frames = Frames(KEY)
    log = frames.first(b"logfile1")
    for number, payload in enumerate((b"one", b"", b"three" * 40), 1):
        log += frames.head(b"logfile1", number, f"session{number}", payload) + payload
    return [frames.first(b"logfile1"), log]


def _configuration(data: bytes) -> object:
    return configuration.configured(place.parse(data.decode("utf-8", "replace"), "unbroken.yaml"))


def _names(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found: list[object] = [layout.commit_sequence(text), layout.epoch_number(text), layout.pack_name(text)]
    found += [layout.birth_name(text), ranks.epoch_of(text), ranks.rank_of(text), split(text), frame_of(text)]
    accepted = 0
    for check in (check_key, check_prefix, check_job, root_of):
        try:
            found.append(check(text))
            accepted += 1
        except UnbrokenError:
            continue
    if not accepted:
        raise CorruptObject("No name of anything.")
    if ".." in text.split("/") and found[-1] == text:
        raise AssertionError("A key leads out of its place.")
    return found


CONFIGURATION = b"""checkpoint:
  save_every_n_steps: 1000
  storage_path: ./runs
  max_checkpoints: 5
  serialization: {format: json_pickle_hybrid, compression: zstd, compression_level: 3}
  distributed:
    coordinator_rank: 0
    sync_timeout: 30
  recovery:
    auto_resume: true
    validate_state: true
"""

_SHORT = (
    b"checkpoint:\n  max_checkpoints: 5\n",
    b"checkpoint:\n  storage_path: ./runs/dqn/of/mine\n",
    b"checkpoint:\n",
)

_TEXTS = (
    b"commits/0000000001.json", b"epochs/0000000002.start.json", b"packs/e1/0123456789b1e1.pack", b"runs@latest",
    b"births/b3-" + b"0" * 64 + b".json", b"s3://bucket/prefix", b"model/~0x/a~1b", b"ranks/0000000001/hello/1.json",
)  # fmt: skip

DECODERS: Mapping[str, Decoder] = {
    one.name: one
    for one in (
        Decoder("records", _record, seeds.sealed_records, mutations.of_sealed, 1.5),
        Decoder("history", _history, lambda: _lines("history.jsonl"), mutations.of_json, 0.5),
        Decoder("manifest", _manifest, lambda: seeds.golden("manifest.json"), mutations.of_json, 0.7),
        Decoder("meta", meta.decode, lambda: seeds.golden("meta.json"), mutations.of_json, 0.5),
        Decoder("birth", _birth, lambda: seeds.golden("births/*.json"), mutations.of_json, 0.7),
        Decoder("document-json", _document("json"), lambda: _documents("json"), mutations.of_json),
        Decoder("document-msgpack", _document("msgpack"), lambda: _documents("msgpack"), mutations.of_msgpack),
        Decoder("laid-over", _laid_over, _captured, mutations.of_msgpack, 0.15),
        Decoder("index", _index, lambda: seeds.golden("*.idx"), mutations.of_index, 0.5),
        Decoder("pack", _pack, lambda: list(seeds.packs()), mutations.of_pack, 0.3),
        Decoder("chunk-list", _chunk_list, lambda: list(seeds.chunk_lists()), mutations.of_bytes, 2),
        Decoder("blob", _blob, lambda: list(seeds.compressed()), mutations.of_bytes, 4),
        Decoder("pickle", _pickle, lambda: list(seeds.pickled()), mutations.of_pickle, 3),
        Decoder("dtype", _dtype, lambda: [text.encode("utf-8", "replace") for text in mutations.TEXTS], mutations.of_bytes, 4),
        Decoder("gym-log", _log, _logs, mutations.of_bytes, 4),
        Decoder("configuration", _configuration, lambda: [CONFIGURATION, *_SHORT], mutations.of_lines, 0.05),
        Decoder("neutral", neutral.decode, lambda: [_neutral()], mutations.of_json, 0.3),
        Decoder("names", _names, lambda: _TEXTS, mutations.of_bytes, 3),
    )
}  # fmt: skip


def _neutral() -> bytes:
    linear = neutral.Step(op="linear", weight="w", bias="b")
    return neutral.encode(
        neutral.Neutral(
            source=neutral.Source(run="run", step=1),
            files={name: neutral.File(bytes=1, sha256="0" * 64) for name in ("w.safetensors", "replay/b/obs.npy")},
            networks=[
                neutral.Network(
                    name="net", place="net", file="w.safetensors", chains={"": [linear]},
                    tensors={name: neutral.Tensor(dtype="float32", shape=[1]) for name in "wb"},
                )
            ],
            replay=[
                neutral.Replay(
                    name="b", place="b", rows=2,
                    columns=[neutral.Column(name="obs", file="replay/b/obs.npy", dtype="float32", shape=[2])],
                )
            ],
        )
    )  # fmt: skip


def _documents(fmt: DocumentFormat) -> list[bytes]:
    found = seeds.golden(f"steps/*/*.{fmt}")
    return [data for data in found if b"unbroken document" in data]


def _lines(name: str) -> list[bytes]:
    return sorted({line for data in seeds.golden(name) for line in data.splitlines() if line})


def mutated(decoder: Decoder, start: list[bytes], random: Random) -> bytes:
    """Return one changed input."""
    data = random.choice(start)
    for _ in range(random.choice((1, 1, 1, 2))):
        data = decoder.mutate(data, random)
    return data


__all__ = ["DECODERS", "Decoder", "mutated"]
