"""Values of many kinds, what makes two of them alike, and their way through a document."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import queue
import types
import uuid
import zoneinfo
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

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
        components[name] = Component(
            name, roots, [component.content(i).copy() for i in range(len(component.blobs))]
        )
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
