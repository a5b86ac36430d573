"""Documents come back equal in both formats, and decoding raises only our errors."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unbroken.errors import CorruptObject, NotCapturable, UnsupportedFormat
from unbroken.format import document as documents
from unbroken.format.digest import digest_of
from unbroken.format.document import CHUNK, DOCUMENT_MAGIC, BlobRef, Document, chunks_of
from unbroken.format.manifest import DocumentFormat
from unbroken.state import nodes
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Component
from unbroken.state.walk import capture

FORMATS: list[DocumentFormat] = ["json", "msgpack"]
both = pytest.mark.parametrize("fmt", FORMATS)


def component(value: nodes.Value) -> Component:
    return Component("model", {"model": value}, tensors={"model": {"weight": "model/weight"}})


def round_trip(value: nodes.Value, fmt: DocumentFormat, blobs: list[BlobRef] | None = None) -> nodes.Value:
    data = documents.encode(component(value), blobs or [], fmt)
    found = documents.decode(data, fmt)
    assert found.component == "model"
    assert found.tensors == {"model": {"weight": "model/weight"}}
    assert found.blobs == (blobs or [])
    return found.roots["model"]


EVERY_WORD: list[nodes.Value] = [
    None,
    True,
    0,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    1.0,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    "",
    "text é \0 \\ \x7f 🙂",
    nodes.Float(v="nan"),
    nodes.Int(v="0x10000000000000000"),
    nodes.Bytes(v=b"\0\xff", mutable=True, id=1),
    nodes.List(v=[1, "a", None], c="m:C", a={"x": 1}, id=2),
    nodes.Packed(t="f", n=2, data=b"\0" * 16),
    nodes.Tuple(v=[1, (2)], c="m:T"),
    nodes.Set(v=[1], frozen=True),
    nodes.Deque(v=[1], m=3),
    nodes.Dict(v={"$": 1, "v": 2, "": 3}),
    nodes.Dict(kv=[(1, 2), (nodes.Tuple(v=[1]), None)], f=nodes.Class(q="m:F")),
    nodes.Array(d="<f4", s=(2, 3), b=0, o="F", rows=1, id=9),
    nodes.ObjectArray(s=(1,), v=[None]),
    nodes.View(of=nodes.Ref(to=9), off=4, d="<f4", s=(1,), st=(-4,)),
    nodes.Object(c="m:O", a={"x": 1}, s={"y": 2}, x={"z": 3}),
    nodes.Coded(k="k", v=1, c="m:K"),
    nodes.Function(q="m.f", h="h", cl={"c": 1}, of=None),
    nodes.Method(n="n", of=nodes.Ref(to=1)),
    nodes.Partial(f=1, a=2, k=3),
    nodes.Class(q="m:C"),
    nodes.External(c="m:E"),
    nodes.Opaque(c="m:P", data=b"x"),
    nodes.Ref(to=3),
    nodes.Link(to="env/0", in_="env_states"),
    nodes.Scope(p="worker", roots={"env": 1}, blobs=[0]),
]


def test_every_word_is_tried() -> None:
    tried = {type(value) for value in EVERY_WORD}
    words = {word for word in vars(nodes).values() if isinstance(word, type) and issubclass(word, nodes.Node)}
    assert words - tried <= {nodes.Node, nodes.Identity}


@both
@pytest.mark.parametrize("value", EVERY_WORD, ids=repr)
def test_every_word_comes_back(value: nodes.Value, fmt: DocumentFormat) -> None:
    found = round_trip(value, fmt)
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)  # tells 1 from True and 0.0 from -0.0


TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
PLAIN: st.SearchStrategy[nodes.Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
STATE = st.recursive(
    PLAIN | st.builds(lambda v: nodes.Bytes(v=v), st.binary(max_size=20)),
    lambda inner: (
        st.builds(lambda v: nodes.List(v=v), st.lists(inner, max_size=4))
        | st.builds(lambda v: nodes.Tuple(v=v), st.lists(inner, max_size=4))
        | st.builds(lambda v: nodes.Dict(v=v), st.dictionaries(TEXT, inner, max_size=4))
        | st.builds(lambda v: nodes.Dict(kv=v), st.lists(st.tuples(inner, inner), max_size=3))
        | st.builds(lambda c, a: nodes.Object(c=c, a=a), TEXT, st.dictionaries(TEXT, inner, max_size=3))
    ),
    max_leaves=15,
)


@both
@given(value=STATE)
def test_any_state_comes_back(value: nodes.Value, fmt: DocumentFormat) -> None:
    found = round_trip(value, fmt)
    assert repr(found) == repr(value)


@both
def test_text_that_is_no_unicode_comes_back(fmt: DocumentFormat) -> None:
    value = nodes.Dict(v={"\ud800": "\\ud800", "\\": nodes.Bytes(v=b"\xff\\"), "\\u0041": "\udcff/\\\\"})
    assert round_trip(value, fmt) == value
    odd = Component(
        "\udcff", {"a/\udcff": nodes.Array(d="<f4", s=(0,), b=0)}, tensors={"\udcff": {"\udcff": "\\"}}
    )
    found = documents.decode(documents.encode(odd, [BlobRef(0)], fmt), fmt)
    assert (found.component, found.roots, found.tensors) == (odd.name, odd.roots, odd.tensors)


class Thing:
    def __init__(self) -> None:
        self.values = {
            "a": [1.5, float("nan"), 2**100],
            (1, 2): {3},
            "surrogate": "\udcff",
            b"k": bytearray(b"x"),
        }
        self.array = np.arange(10_000, dtype=np.float32)
        self.me = self


@both
def test_what_the_walker_makes_comes_back(fmt: DocumentFormat) -> None:
    snapshot = capture({"thing": Thing()}, Policy())
    for part in snapshot.components.values():
        contents = [part.content(i) for i in range(len(part.blobs))]
        refs = [BlobRef(blob.nbytes, [digest_of(c) for c in chunks_of(blob.data)]) for blob in contents]
        found = documents.decode(documents.encode(part, refs, fmt), fmt)
        assert repr(found.roots) == repr(part.roots)
        assert found.blobs == refs


def test_json_is_for_people() -> None:
    text = documents.encode(component(nodes.Dict(v={"gamma": 0.99})), []).decode()
    assert '\n    "gamma": 0.99' in text
    assert text.startswith('{\n "magic": "unbroken document",\n "version": ')


def test_large_json_is_for_programs() -> None:
    data = documents.encode(component(nodes.List(v=[0.5] * 400_000)), [])
    assert b"\n" not in data


@both
def test_equal_components_give_equal_bytes(fmt: DocumentFormat) -> None:
    value = nodes.Dict(v={"b": 1, "a": nodes.Set(v=[1, 2])})
    assert documents.encode(component(value), [], fmt) == documents.encode(component(value), [], fmt)


# Blobs


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_chunks_cover_a_blob(size: int) -> None:
    blob = np.arange(size, dtype=np.uint32).astype(np.uint8)
    chunks = list(chunks_of(blob.data))
    assert b"".join(chunks) == blob.tobytes()
    ref = BlobRef(size, [digest_of(chunk) for chunk in chunks])
    assert [n for _, n in ref.named()] == [len(chunk) for chunk in chunks]
    assert all(np.shares_memory(np.frombuffer(chunk, np.uint8), blob) for chunk in chunks)


def test_an_unchanged_prefix_keeps_its_digests() -> None:
    blob = np.zeros(4 * CHUNK, np.uint8)
    before = [digest_of(chunk) for chunk in chunks_of(blob.data)]
    blob[-1] = 1
    assert [digest_of(chunk) for chunk in chunks_of(blob.data)][:3] == before[:3]


@both
@pytest.mark.parametrize(
    "ref", [{"size": 2**62}, {"size": -1}, {"size": 2**63}, {"size": 1}, {"size": "1"}, {}]
)
def test_a_size_without_its_chunks_is_refused(ref: dict[str, object], fmt: DocumentFormat) -> None:
    plain = msgspec.to_builtins(Document(magic=DOCUMENT_MAGIC, version=0, component="m", roots={}))
    encode: Callable[[object], bytes] = msgspec.json.encode if fmt == "json" else msgspec.msgpack.encode
    documents.decode(encode(plain), fmt)
    with pytest.raises(CorruptObject):
        documents.decode(encode(plain | {"blobs": [ref]}), fmt)


@both
def test_a_chunk_is_named_by_a_digest(fmt: DocumentFormat) -> None:
    data = documents.encode(component(None), [BlobRef(1, [digest_of(b"x")])], fmt)
    with pytest.raises(CorruptObject):
        documents.decode(data.replace(b"b3:", b"b4:"), fmt)


# Bad input


@both
@given(raw=st.binary(max_size=300))
def test_any_bytes_give_our_error(raw: bytes, fmt: DocumentFormat) -> None:
    with pytest.raises((CorruptObject, UnsupportedFormat)):
        documents.decode(raw, fmt)


@both
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_bytes_give_a_document_or_our_error(fmt: DocumentFormat, data: st.DataObject) -> None:
    whole = nodes.List(v=EVERY_WORD)
    raw = bytearray(documents.encode(component(whole), [BlobRef(1, [digest_of(b"x")])], fmt))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        assert isinstance(documents.decode(bytes(raw), fmt), Document)
    except (CorruptObject, UnsupportedFormat):
        pass


@both
def test_every_cut_is_corrupt(fmt: DocumentFormat) -> None:
    raw = documents.encode(component(nodes.List(v=EVERY_WORD)), [], fmt)
    for end in range(len(raw)):
        with pytest.raises(CorruptObject):
            documents.decode(raw[:end], fmt, key="m")


@both
@pytest.mark.parametrize(
    "root",
    [
        {"$": "exec", "v": "x"},
        {"$": "list"},
        {"$": "list", "v": {}},
        {"v": 1},
        {"$": "object", "c": 1},
        {"$": "array", "d": "<f4", "s": ["2"]},
        [1],
    ],
)
def test_other_words_are_refused(root: object, fmt: DocumentFormat) -> None:
    plain = {"magic": DOCUMENT_MAGIC, "version": 0, "component": "m", "roots": {"m": root}}
    encode: Callable[[object], bytes] = msgspec.json.encode if fmt == "json" else msgspec.msgpack.encode
    with pytest.raises(CorruptObject, match=r"x\.json"):
        documents.decode(encode(plain), fmt, key="x.json")


@both
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 1000}, UnsupportedFormat),
        ({"version": 1000, "roots": 5}, UnsupportedFormat),
        ({"magic": "something else"}, CorruptObject),
        ({"component": 5}, CorruptObject),
    ],
)
def test_newer_is_told_from_damaged(
    change: dict[str, object], expected: type[Exception], fmt: DocumentFormat
) -> None:
    plain: dict[str, Any] = {"magic": DOCUMENT_MAGIC, "version": 0, "component": "m", "roots": {}}
    encode: Callable[[object], bytes] = msgspec.json.encode if fmt == "json" else msgspec.msgpack.encode
    with pytest.raises(expected):
        documents.decode(encode(plain | change), fmt)


# Depth


def chain(levels: int, kind: str) -> nodes.Value:
    value: nodes.Value = None
    for _ in range(levels):
        if kind == "list":
            value = nodes.List(v=[value])
        elif kind == "object":
            value = nodes.Object(c="m:C", a={"x": value})
        else:
            value = nodes.Dict(kv=[(1, value)])
    return value


def deepest(kind: str, fmt: DocumentFormat) -> bytes:
    """Return the deepest document of this kind that can be written from here."""
    low, high, best = 1, 1, b""
    while True:
        try:
            best = documents.encode(component(chain(high, kind)), [], fmt)
        except NotCapturable:
            break
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        try:
            best = documents.encode(component(chain(middle, kind)), [], fmt)
            low = middle
        except NotCapturable:
            high = middle
    return best


def at_depth(frames: int, call: Callable[[], object]) -> object:
    return call() if frames == 0 else at_depth(frames - 1, call)


recursion_is_counted_by_frames = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="from 3.12 on, C code has a limit of its own, far above any state"
)


@recursion_is_counted_by_frames
@both
@pytest.mark.parametrize("kind", ["list", "object", "pairs"])
def test_what_could_be_written_can_be_read_from_a_deeper_place(kind: str, fmt: DocumentFormat) -> None:
    written: list[bytes] = []
    thread = threading.Thread(target=lambda: written.append(deepest(kind, fmt)))
    thread.start()
    thread.join()
    found = at_depth(300, lambda: documents.decode(written[0], fmt))
    assert isinstance(found, Document)


@recursion_is_counted_by_frames
@both
def test_too_deep_to_write_names_the_component(fmt: DocumentFormat) -> None:
    with pytest.raises(NotCapturable, match="model") as caught:
        documents.encode(component(chain(5000, "list")), [], fmt)
    assert caught.value.hint
    assert caught.value.place == "model"


@both
def test_too_deep_to_read_is_our_error(fmt: DocumentFormat) -> None:
    levels = 200_000
    if fmt == "json":
        head = b'{"magic":"unbroken document","version":0,"component":"m","roots":{"m":'
        raw = head + b'{"$":"list","v":[' * levels + b"]}" * levels + b"}}"
    else:
        plain = {"magic": DOCUMENT_MAGIC, "version": 0, "component": "m", "roots": {"m": None}}
        word = b"\x82" + msgspec.msgpack.encode("$") + msgspec.msgpack.encode("list")
        word += msgspec.msgpack.encode("v") + b"\x91"
        raw = msgspec.msgpack.encode(plain)[:-1] + word * levels + b"\xc0"
    with pytest.raises(CorruptObject):
        documents.decode(raw, fmt)
    skipped = b'{"later":' + b"[" * levels + b"]" * levels + b"}"
    with pytest.raises(CorruptObject):
        documents.decode(skipped, "json")


# The collector


@both
@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(fmt: DocumentFormat, *, enabled: bool) -> None:
    raw = documents.encode(component(None), [], fmt)
    was = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        documents.decode(raw, fmt)
        assert gc.isenabled() is enabled
        with pytest.raises(CorruptObject):
            documents.decode(b"", fmt)
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was else gc.disable()
