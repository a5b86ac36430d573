"""Every kind of value comes back as it was: through JSON, through MessagePack, and in place."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import io
import itertools
import os
import pathlib
import queue
import struct
import subprocess
import sys
import threading
import types
import uuid
import weakref
import zoneinfo
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from unbroken.errors import NotCapturable
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.nodes import Value
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Component, Snapshot
from unbroken.state.walk import capture

POLICY = Policy()


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: float
    y: Any


@dataclasses.dataclass
class Record:
    name: str
    values: list[int]


@dataclasses.dataclass(frozen=True)
class Frozen:
    __slots__ = ("a", "b")
    a: int
    b: list[int]


class Slotted:
    __slots__ = ("__private", "left", "unset")
    unset: int

    def __init__(self) -> None:
        self.left = [1]
        self.__private = 2

    def private(self) -> int:
        return self.__private


class Celsius(float):
    pass


class Tag(str):
    __slots__ = ()


class Names(list[Any]):
    pass


class Labelled(set[Any]):
    pass


class Window(collections.deque[Any]):
    pass


class Pair(tuple[Any, ...]):  # noqa: SLOT001 - its attributes are what is tested
    pass


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(str, enum.Enum):
    TRAIN = "train"


class Mask(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass(frozen=True)
class Cell:
    """A key as tabular methods use it: hashed by what it holds."""

    x: int
    y: int


def labelled(value: Any, label: str) -> Any:
    value.label = label
    value.notes = [label]
    return value


class Settings(dict[str, Any]):
    pass


class Holder:
    """Gets its attributes from outside."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def through(encoding: str, snapshot: Snapshot) -> Snapshot:
    """Write a snapshot out and read it again, typed, as a checkpoint does."""
    module = {"json": msgspec.json, "msgpack": msgspec.msgpack}[encoding]
    components = {}
    for name, component in snapshot.components.items():
        roots = module.decode(module.encode(component.roots), type=dict[str, Value])
        components[name] = Component(name, roots, [blob.copy() for blob in component.blobs])
    return Snapshot(components)


def restored(encoding: str, value: object, twin: object) -> Any:
    """Capture `value`, write, read, and restore over `twin`; the second capture must equal the first."""
    saved = through(encoding, capture({"root": Holder(value=value)}, POLICY))
    live = Holder(value=twin)
    graft = plan(saved, {"root": live}, POLICY)
    assert graft.errors == []
    graft.apply()
    again = capture({"root": live}, POLICY)
    assert compare(saved, again) == []
    return live.__dict__["value"]


ENCODINGS = pytest.mark.parametrize("encoding", ["json", "msgpack"])
ARRAY = np.arange(2000, dtype=np.float32).reshape(50, 40)
RECORDS = np.array([(1, (2.5, 3), "x")], dtype=[("a", "<i4"), ("b", "<f8", (2,)), ("c", "<U3")])


def filled(waiting: queue.Queue[Any], *items: Any) -> queue.Queue[Any]:
    for item in items:
        waiting.put(item)
    return waiting


def moved(stream: Any, position: int) -> Any:
    stream.seek(position)
    return stream


VALUES: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": -7,
    "big": 2**127,
    "negative big": -(2**200),
    "edge": 2**63,
    "inf": float("inf"),
    "minus inf": float("-inf"),
    "text": "é\0\n",
    "bytes": b"\x00\xff",
    "long bytes": bytes(range(256)) * 20,
    "bytearray": bytearray(b"abc"),
    "complex": complex(1.5, -0.0),
    "slice": slice(1, None, 2),
    "range": range(3, 30, 4),
    "ellipsis": ...,
    "not implemented": NotImplemented,
    "scalar f4": np.float32(0.1),
    "scalar bool": np.bool_(True),
    "scalar time": np.datetime64("2024-02-29T12:00", "ns"),
    "scalar str": np.str_("abc"),
    "dtype": np.dtype("<f4"),
    "record dtype": RECORDS.dtype,
    "array": ARRAY,
    "fortran": np.asfortranarray(ARRAY),
    "records": RECORDS,
    "empty array": np.empty((0, 3), np.int8),
    "0-d array": np.array(5),
    "times": np.array(["2024-01-01", "NaT"], "M8[D]"),
    "strings": np.array(["a", "bcd"]),
    "half": np.array([1.5, np.nan], np.float16),
    "objects": np.array([None, [1, 2], {"a": ARRAY}], dtype=object),
    "nan payload": np.array([0x7FF8DEADBEEF0001], np.uint64).view(np.float64),
    "datetime": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone.utc),
    "date": datetime.date(2024, 2, 29),
    "time": datetime.time(1, 2, 3),
    "timedelta": datetime.timedelta(days=-1, microseconds=7),
    "timezone": datetime.timezone(datetime.timedelta(hours=2)),
    "decimal": decimal.Decimal("1.10"),
    "fraction": fractions.Fraction(1, 3),
    "uuid": uuid.UUID(int=5),
    "path": pathlib.Path("a/b"),
    "enum": Color.BLUE,
    "flag": Access.READ | Access.WRITE,
    "set": {1, "a", (2, 3)},
    "frozenset": frozenset({1, 2}),
    "tuple": (1, [2], (3,)),
    "namedtuple": Point(1.0, [2]),
    "deque": collections.deque([1, [2]], maxlen=3),
    "endless deque": collections.deque([1]),
    "ordered": collections.OrderedDict([("b", 1), ("a", [2])]),
    "counter": collections.Counter("hello"),
    "default": collections.defaultdict(list, a=[1]),
    "mixed keys": {1: "int", "1": "str", None: 0, (1, 2): [3], 2.5: b"x"},
    "dataclass": Record("a", [1, 2]),
    "frozen slots": Frozen(1, [2]),
    "float subclass": Celsius(20.5),
    "str subclass": Tag("x"),
    "dict subclass": Settings(a=1, b=[2]),
    "namespace": types.SimpleNamespace(b=[1], a=2),
    "nested": {"a": [{"b": ({"c": [1.5, None, False]},)}]},
    "int enum": Level.HIGH,
    "str enum": Mode.TRAIN,
    "int flag": Mask.A | Mask.B,
    "list with attributes": labelled(Names([1]), "a"),
    "set with attributes": labelled(Labelled([1, 2]), "a"),
    "deque with attributes": labelled(Window([1], maxlen=4), "a"),
    "tuple with attributes": labelled(Pair([1, [2]]), "a"),
    "float with attributes": labelled(Celsius(1.5), "a"),
    "dict with attributes": labelled(Settings(a=1), "a"),
    "keys that hold something": {Cell(0, 1): [1.5], Cell(2, 3): [2.5]},
    "members that hold something": {Cell(0, 1), Cell(2, 3), Cell(4, 5)},
    "frozen members": frozenset({Cell(0, 1), Cell(2, 3), Level.LOW}),
    "keys of one value": {True: "bool", "1": "str"},
    "pure path": pathlib.PurePosixPath("/a/b"),
    "foreign path": pathlib.PureWindowsPath("c:/a"),
    "zone": datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    "named offset": datetime.timezone(datetime.timedelta(hours=1), "CET"),
    "array of the library": array.array("d", [1.0, float("nan"), 3.0]),
    "queue": filled(queue.Queue(5), 1, [2]),
    "stack": filled(queue.LifoQueue(), 1, [2]),
    "heap": filled(queue.PriorityQueue(), 3, 1),
    "bytes in memory": moved(io.BytesIO(b"abc"), 2),
    "text in memory": moved(io.StringIO("aé\udcff"), 1),
    "many floats": [float(i) / 7 for i in range(500)],
    "many ints": list(range(-100, 400)),
    "bools are no ints": [True] * 100,
}


def alike(a: Any, b: Any) -> bool:
    """Whether two values are the same to a program, told without the code under test."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        same_form = (a.dtype, a.shape, a.flags.f_contiguous) == (b.dtype, b.shape, b.flags.f_contiguous)
        if a.dtype == object:
            return same_form and all(map(alike, a.ravel(), b.ravel()))
        return same_form and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, enum.Enum) or a is None:
        return a is b
    if isinstance(a, queue.Queue):
        return alike(list(a.queue), list(b.queue)) and a.maxsize == b.maxsize
    if isinstance(a, (io.BytesIO, io.StringIO)):
        return bool(a.getvalue() == b.getvalue() and a.tell() == b.tell())
    if isinstance(a, array.array):
        return bool(a.typecode == b.typecode and a.tobytes() == b.tobytes())
    parts = {**getattr(a, "__dict__", {}), **{n: getattr(a, n) for n in getattr(a, "__slots__", ())}}
    other = {**getattr(b, "__dict__", {}), **{n: getattr(b, n) for n in getattr(b, "__slots__", ())}}
    if list(parts) != list(other) or not all(alike(parts[n], other[n]) for n in parts):
        return False
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(alike(x, y) for x, y in pairs)
    if isinstance(a, (list, tuple, collections.deque)):
        if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
            return False
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(alike(x, y) for y in b) for x in a)
    if isinstance(a, (Record, Frozen, Slotted, types.SimpleNamespace)):
        return True  # all that they hold was compared above
    return bool(a == b)


def test_alike_sees_what_differs() -> None:
    for name, value in VALUES.items():
        assert alike(value, value), name
        others: tuple[Any, ...] = (None, 0, [], {}, np.zeros(1), Record("z", []))
        for other in others:
            if other is not value:
                assert not alike(value, other), name
    assert not alike(Record("a", [1]), Record("a", [2]))
    assert not alike(labelled(Names([1]), "a"), labelled(Names([1]), "b"))


@ENCODINGS
@pytest.mark.parametrize("name", VALUES)
def test_comes_back_where_nothing_stood(encoding: str, name: str) -> None:
    assert alike(restored(encoding, VALUES[name], None), VALUES[name])


@ENCODINGS
@pytest.mark.parametrize("name", VALUES)
def test_comes_back_over_something_else(encoding: str, name: str) -> None:
    for twin in (5, "text", [1, 2, 3], {"a": 1}, {1: [2]}):
        assert alike(restored(encoding, VALUES[name], twin), VALUES[name])


@ENCODINGS
def test_special_floats_keep_their_bits(encoding: str) -> None:
    odd = struct.unpack(">d", bytes.fromhex("fff8000000001234"))[0]
    back = restored(encoding, [-0.0, float("nan"), odd], None)
    assert [struct.pack(">d", x).hex() for x in back] == [
        "8000000000000000",
        "7ff8000000000000",
        "fff8000000001234",
    ]


@ENCODINGS
def test_mutable_objects_of_the_twin_are_filled_in_place(encoding: str) -> None:
    twins: dict[str, Any] = {
        "list": [9],
        "dict": {"b": 1, "a": 2},
        "ordered": collections.OrderedDict(z=1),
        "deque": collections.deque([5], maxlen=2),
        "set": {7},
        "array": np.zeros((2, 2)),
        "bytes": bytearray(b"zz"),
        "object": Record("old", []),
    }
    saved: dict[str, Any] = {
        "list": [1, 2],
        "dict": {"a": 1, "c": 3},
        "ordered": collections.OrderedDict(b=1, a=2),
        "deque": collections.deque([1, 2], maxlen=2),
        "set": {1},
        "array": np.ones((2, 2)),
        "bytes": bytearray(b"abc"),
        "object": Record("new", [1]),
    }
    before = dict(twins)
    back = restored(encoding, saved, twins)
    assert back is twins
    for name, twin in before.items():
        assert back[name] is twin
    assert list(back["ordered"]) == ["b", "a"]
    assert list(back["dict"]) == ["a", "c"]


@ENCODINGS
def test_slots_are_walked_private_ones_too(encoding: str) -> None:
    saved = Slotted()
    saved.left.append(2)
    back = restored(encoding, saved, Slotted())
    assert back.left == [1, 2]
    assert back.private() == 2
    assert not hasattr(back, "unset")


@ENCODINGS
def test_aliases_and_cycles_survive(encoding: str) -> None:
    shared: list[Any] = [1]
    cycle: list[Any] = []
    cycle.append(cycle)
    back = restored(encoding, {"a": shared, "b": (shared,), "c": cycle}, None)
    assert back["a"] is back["b"][0]
    assert back["c"][0] is back["c"]


@ENCODINGS
def test_two_saved_objects_never_become_one(encoding: str) -> None:
    twin_list = [0]
    back = restored(encoding, {"a": [1], "b": [1]}, {"a": twin_list, "b": twin_list})
    assert back["a"] is not back["b"]


@ENCODINGS
def test_views_keep_sharing_memory(encoding: str) -> None:
    base = np.arange(1000.0)
    value = {
        "base": base,
        "every third": base[::3],
        "backwards": base[::-1],
        "as ints": base[:8].view(np.int64),
    }
    back = restored(encoding, value, None)
    back["base"][0] = 77.0
    assert back["every third"][0] == 77.0
    assert back["backwards"][-1] == 77.0
    assert back["as ints"][0] == np.float64(77.0).view(np.int64)


def test_a_small_view_does_not_drag_its_base_along() -> None:
    base = np.zeros(1_000_000)
    snapshot = capture({"root": Holder(value=base[:2000])}, POLICY)
    assert sum(c.nbytes for c in snapshot.components.values()) == 16_000


@ENCODINGS
def test_an_unfilled_ring_saves_only_its_written_rows(encoding: str) -> None:
    class Ring:
        def __init__(self) -> None:
            self.rows = np.zeros((1000, 4))
            self.infos = np.empty(1000, dtype=object)

    def written(obj: object) -> dict[str, int] | None:
        return {"rows": 3, "infos": 2} if isinstance(obj, Ring) else None

    policy = Policy(rings=(written,))
    saved, twin = Ring(), Ring()
    saved.rows[:3] = 5
    saved.infos[:2] = [{"a": 1}, {}]
    snapshot = through(encoding, capture({"ring": saved}, policy))
    assert sum(c.nbytes for c in snapshot.components.values()) == 0  # 96 bytes stand in the document
    array = twin.rows
    graft = plan(snapshot, {"ring": twin}, policy)
    graft.apply()
    assert twin.rows is array
    assert twin.rows.tobytes() == saved.rows.tobytes()
    assert twin.infos.tolist() == saved.infos.tolist()


def _counter() -> Any:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


@ENCODINGS
def test_a_closure_keeps_counting(encoding: str) -> None:
    saved, twin = _counter(), _counter()
    for _ in range(5):
        saved()
    assert restored(encoding, saved, twin) is twin
    assert twin() == 6


@ENCODINGS
def test_partials_and_bound_methods_lead_to_the_twin(encoding: str) -> None:
    log: list[int] = [1, 2]
    value = {"log": log, "append": log.append, "partial": functools.partial(sorted, log)}
    twin_log: list[int] = []
    twin = {"log": twin_log, "append": twin_log.append, "partial": functools.partial(sorted, twin_log)}
    back = restored(encoding, value, twin)
    back["append"](9)
    assert back["log"] == [1, 2, 9]
    assert back["partial"]() == [1, 2, 9]


@ENCODINGS
def test_what_cannot_travel_is_kept_from_the_twin(encoding: str) -> None:
    target = Holder()
    value = {"lock": threading.Lock(), "ref": weakref.ref(target)}
    twin = {"lock": threading.Lock(), "ref": weakref.ref(target)}
    lock, ref = twin["lock"], twin["ref"]
    back = restored(encoding, value, twin)
    assert back["lock"] is lock
    assert back["ref"] is ref


@ENCODINGS
def test_a_count_goes_on(encoding: str) -> None:
    counter = itertools.count(3, 2)
    next(counter)
    back = restored(encoding, counter, itertools.count())
    assert next(back) == 5


def _lost(value: Any) -> list[str]:
    return [note.kind for note in capture({"root": Holder(v=value)}, POLICY).notes]


@pytest.mark.parametrize(
    "value",
    [
        (i for i in range(3)), iter([1]), map(str, [1]), itertools.cycle([1]), itertools.count(0.5),
        queue.SimpleQueue(), {}.keys(), weakref.WeakValueDictionary(), reversed([1]),
    ],
)  # fmt: skip
def test_what_holds_something_out_of_reach_is_named_as_not_captured(value: Any) -> None:
    assert _lost(value) == ["not captured"]


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), threading.Event(), sys.__stdout__, weakref.ref(Holder), types.MappingProxyType({})],
)
def test_what_belongs_to_the_process_is_named_as_external(value: Any) -> None:
    assert _lost(value) == ["external"]


def test_an_array_of_a_class_of_its_own_is_refused_by_name() -> None:
    with pytest.raises(NotCapturable, match="MaskedArray"):
        capture({"root": Holder(v=np.ma.MaskedArray([1.0, 2.0], mask=[True, False]))}, POLICY)


@ENCODINGS
@pytest.mark.parametrize("order", ["za", "az"])
def test_a_slice_of_something_large_stays_one_wherever_it_is_met(encoding: str, order: str) -> None:
    def state(fill: float) -> dict[str, Any]:
        large = np.full(10_000, fill)
        parts = {"a": large[:4], "z": large}
        return {name: parts[name] for name in order}

    twin = state(0.0)
    back = restored(encoding, state(7.0), twin)
    assert back["a"].base is back["z"]
    back["z"][0] = 9.0
    assert back["a"].tolist() == [9.0, 7.0, 7.0, 7.0]


@ENCODINGS
def test_a_slice_of_something_that_is_not_saved_is_filled_where_it_lies(encoding: str) -> None:
    hidden = np.zeros(10_000)
    twin = {"seen": hidden[10:14]}
    back = restored(encoding, {"seen": np.arange(10_000.0)[10:14]}, twin)
    assert back["seen"].base is hidden
    assert hidden[9:15].tolist() == [0.0, 10.0, 11.0, 12.0, 13.0, 0.0]


@ENCODINGS
def test_a_shared_count_stays_shared(encoding: str) -> None:
    counter = itertools.count(5)
    back = restored(encoding, {"a": counter, "b": counter}, {"a": itertools.count(), "b": itertools.count()})
    assert [next(back["a"]), next(back["b"])] == [5, 6]


@ENCODINGS
def test_holders_of_the_twin_are_filled_in_place(encoding: str) -> None:
    saved = {"a": array.array("d", [1.0]), "q": filled(queue.Queue(), 1), "b": moved(io.BytesIO(b"ab"), 1)}
    twin = {"a": array.array("d", [5.0, 6.0]), "q": filled(queue.Queue(), 7), "b": io.BytesIO(b"xyz")}
    before = dict(twin)
    back = restored(encoding, saved, twin)
    for name, holder in before.items():
        assert back[name] is holder
        assert alike(holder, saved[name])


@ENCODINGS
def test_a_function_keeps_its_attributes_and_its_default_containers(encoding: str) -> None:
    def make() -> Any:
        def count(key: str, seen: dict[str, int] = {}, *, log: list[str] = []) -> int:  # noqa: B006
            seen[key] = seen.get(key, 0) + 1
            log.append(key)
            return seen[key]

        return count

    saved, twin = make(), make()
    saved("a")
    saved("a")
    saved.calls = [1]
    assert restored(encoding, saved, twin) is twin
    assert twin("a") == 3
    assert twin.calls == [1]


HASHED = """
import sys
sys.path[:0] = {paths!r}
from unbroken.state.code import code_hash
def ask(x, y=("a", ("b", "c"))):
    return x in {{"up", "down", "left", "right"}} and (lambda z: z in {{"one", "two"}})(y)
print(code_hash(ask.__code__))
"""


def test_the_hash_of_code_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", HASHED.format(paths=sys.path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_what_a_set_holds_decides_its_order_and_nothing_else() -> None:
    class Thing:
        def __init__(self, n: int) -> None:
            self.n = n

        def __repr__(self) -> str:
            raise AssertionError("code of the object was run")

    things = [Thing(n) for n in range(20)]
    others = [Thing(n) for n in reversed(range(20))]  # at other addresses, so in another order
    a, b = capture({"s": set(things)}, POLICY), capture({"s": set(others)}, POLICY)
    assert compare(a, b) == []


def test_a_policy_that_nobody_holds_is_forgotten() -> None:
    policy = Policy()
    capture({"a": [1]}, policy)
    gone = weakref.ref(policy)
    del policy
    gc.collect()
    assert gone() is None


@ENCODINGS
def test_slots_that_the_saved_object_had_unset_are_unset(encoding: str) -> None:
    twin = Slotted()
    twin.unset = 5
    assert not hasattr(restored(encoding, Slotted(), twin), "unset")


def test_the_snapshot_is_true() -> None:
    array, items, data = np.ones(2000), [1, 2], bytearray(b"abc")
    state = Holder(array=array, view=array[::2], items=items, data=data)
    snapshot = capture({"root": state}, POLICY)
    before = capture({"root": state}, POLICY)
    array[:] = 7
    items.append(3)
    data[0] = 0
    assert compare(snapshot, before) == []
    assert compare(snapshot, capture({"root": state}, POLICY)) != []
