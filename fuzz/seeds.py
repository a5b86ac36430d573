"""What mutations start from: the golden files, and a sample of every record that they do not hold."""

from __future__ import annotations

import pickle
from collections import OrderedDict, deque
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import msgspec
import numpy as np

import unbroken.format as formats
from unbroken.format.chunks import ChunkList
from unbroken.format.compression import BlobCodec, Compression, Compressor
from unbroken.format.digest import digest_of
from unbroken.format.pack import PackWriter
from unbroken.format.wire import FORMAT_VERSION, Record
from unbroken.repo.seal import seal

for _module in iter_modules(formats.__path__):  # a kind of record that nobody has imported would not be known
    import_module(f"{formats.__name__}.{_module.name}")

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"

_EXAMPLES = (
    "", "b3:" + "0" * 64, "abc123", "steps/step_000000000300-0123456789b3e2", "auto", "a",
)  # fmt: skip


def kinds() -> dict[str, type[Record]]:
    """Return every kind of record by its tag."""
    found: dict[str, type[Record]] = {}
    waiting: list[type[Record]] = [Record]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        tag = kind.__struct_config__.tag
        if isinstance(tag, str) and kind.__module__.startswith("unbroken."):
            found[tag] = kind
    return dict(sorted(found.items()))


@cache
def golden(*patterns: str) -> list[bytes]:
    """Return the contents of golden files, shortest first."""
    paths = {path for pattern in patterns for path in GOLDEN.glob(f"v*/**/{pattern}") if path.is_file()}
    return sorted({path.read_bytes() for path in paths}, key=lambda data: (len(data), data))


@cache
def sealed_records() -> list[bytes]:
    """Return one record of each kind, sealed, and those of the golden files."""
    return [seal(sample(kind)) for kind in kinds().values()] + golden(
        "commits/*.json", "epochs/*.json", "format.json", "lease.json", "low_water.json", "workers.json"
    )


def sample(kind: type[Any]) -> Any:
    """Return a value of a record's type: the smallest that its fields allow."""
    return msgspec.convert({"record": getattr(kind.__struct_config__, "tag", None), **_fields(kind)}, kind)


def _fields(kind: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    about = msgspec.inspect.type_info(kind)
    assert isinstance(about, msgspec.inspect.StructType)
    for one in about.fields:
        found[one.encode_name] = FORMAT_VERSION if one.encode_name == "version" else _sample(one.type)
    return found


def _sample(kind: Any) -> Any:  # noqa: C901 - one line a kind
    inspect = msgspec.inspect
    if isinstance(kind, inspect.IntType):
        return max(kind.ge or 0, 1)
    if isinstance(kind, inspect.FloatType):
        return 1.5
    if isinstance(kind, inspect.BoolType):
        return True
    if isinstance(kind, inspect.StrType):
        for text in _EXAMPLES[::-1]:
            try:
                return msgspec.convert(text, _annotated(kind))
            except msgspec.ValidationError:
                continue
    if isinstance(kind, inspect.EnumType):
        return next(iter(kind.cls)).value
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.ListType):
        return [_sample(kind.item_type)]
    if isinstance(kind, (inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)):
        return [_sample(kind.item_type)]
    if isinstance(kind, inspect.TupleType):
        return [_sample(one) for one in kind.item_types]
    if isinstance(kind, inspect.DictType):
        return {_sample(kind.key_type): _sample(kind.value_type)}
    if isinstance(kind, inspect.StructType):
        return _fields(kind.cls)
    if isinstance(kind, inspect.UnionType):
        return _sample(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    if isinstance(kind, inspect.Metadata):
        return _sample(kind.type)
    return None


def _annotated(kind: Any) -> Any:
    from typing import Annotated

    return Annotated[str, msgspec.Meta(pattern=kind.pattern)] if kind.pattern else str


def pickled() -> Iterator[bytes]:
    """Yield pickles of plain things and of things with classes."""
    things: list[object] = [
        {"a": [1, 2.5, None, True], "b": (1, "x", b"y")}, {1, 2}, frozenset({3}), bytearray(b"abc"), 1 + 2j, slice(1, 2),
        OrderedDict(a=1), deque([1, 2], 5), Fraction(1, 3), np.arange(4.0), np.float32(1), np.dtype("<i4"), np.arange(6)[::2],
        np.asfortranarray(np.ones((2, 2))), object(), print, [Fraction(1, 2)] * 3,
    ]  # fmt: skip
    for thing in things:
        for protocol in (2, 4, 5):
            yield pickle.dumps(thing, protocol)


def compressed() -> Iterator[bytes]:
    """Yield compressed bytes, the codec's number before them."""
    for codec, number in ((BlobCodec.RAW, 0), (BlobCodec.ZSTD, 1), (BlobCodec.GZIP, 2)):
        for data in (b"", b"abc" * 100, bytes(5000)):
            _, stored = Compressor(Compression(codec)).compress(data)
            yield bytes([number]) + bytes(stored)


def packs() -> Iterator[bytes]:
    """Yield small packs."""
    for codec in BlobCodec:
        blobs = [(digest_of(data), data) for data in (b"", b"abc" * 50, bytes(3000))]
        compressor = Compressor(Compression(codec))
        stored = [(digest, len(data), *compressor.compress(data)) for digest, data in blobs]
        yield b"".join(PackWriter("0123456789ade1").stream(stored))


def chunk_lists() -> Iterator[bytes]:
    """Yield nodes of chunk lists, small and large, the number of chunks before them."""
    for count in (1, 2, 256, 300):
        chunks = ChunkList.of([digest_of(bytes([i % 256])) for i in range(count)])
        yield count.to_bytes(4, "little") + b"".join(node.data for node in chunks.nodes())


__all__ = ["chunk_lists", "compressed", "golden", "kinds", "pickled", "sample", "sealed_records"]
