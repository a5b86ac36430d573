from __future__ import annotations

import copy
import datetime
import enum
import functools
import itertools
import math
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.adapters.nemo_gym.sessions.digests import TooLarge, digest_and_opaque, digest_of
from unbroken.adapters.nemo_gym.sessions.pickling import pickled, unpickled
from unbroken.adapters.nemo_gym.sessions.plain import decoded, encoded


class Point(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Node:
    value: Any
    next: Any = None

    def method(self) -> Any:
        return self.value


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


def adder(amount: int) -> Any:
    return lambda x: x + amount


def chained(*values: Any) -> Node:
    first = Node(values[-1])
    for value in reversed(values[:-1]):
        first = Node(value, first)
    return first


def ring() -> Node:
    first = chained(1, 2)
    first.next.next = first
    return first


DIFFERENT: list[Any] = [
    None, True, 1, 1.0, -0.0, 0.0, math.nan, math.inf, "1", b"1", bytearray(b"1"), (1,), [1], {1}, frozenset({1}), {1: 1}, {"1": 1},
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, OrderedDict(a=1, b=2), defaultdict(int, a=1, b=2), Counter("aab"), deque([1]), deque([1], 3),
    Point(1, 2), (1, 2), Color.RED, Color.BLUE, Node(1), Node(2), Node([1]), chained(1, 2), ring(), Slotted(1, 2), Slotted(1, 3),
    np.int64(1), np.float32(1), np.arange(3), np.arange(3.0), np.arange(4).reshape(2, 2), np.array([1, "a"], dtype=object),
    random.Random(1), random.Random(2), np.random.default_rng(1), np.random.default_rng(2), Path("a"), Decimal("1.0"), Decimal("1.00"),
    datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc), adder(1), adder(2), Node(1).method, Node(2).method, len, math, Node,
    functools.partial(adder, 1), functools.partial(adder, 2), [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8.0],
    [1, 2, 3, 4, 5, 6, 7, "8"], ["1", "2", "3", "4", "5", "6", "7", "8"], 1 << 70, [1 << 70] * 9, ["\ud800"] * 9, "\ud800",
    {"a", "b", "c"}, {"a", ("b", "c")}, ["x", "y"], ["xy", ""], [["x"], "y"], complex(1, 2), range(3),
]  # fmt: skip


def test_different_values_have_different_digests() -> None:
    digests = [digest_of(value) for value in DIFFERENT]
    for (one, a), (other, b) in itertools.combinations(zip(DIFFERENT, digests, strict=True), 2):
        assert a != b, (one, other)


def test_equal_values_have_equal_digests() -> None:
    for value in DIFFERENT:
        if callable(value) or value is math:
            continue
        assert digest_of(copy.deepcopy(value)) == digest_of(value), value
    assert digest_of(adder(1)) == digest_of(adder(1))


def test_a_pickle_keeps_the_digest() -> None:
    for value in DIFFERENT:
        if value is math or (callable(value) and "lambda" in str(value)):
            continue
        data = pickled(value, {}).data
        assert digest_of(unpickled(data, lambda name: None)) == digest_of(value), value


def test_one_object_met_twice_is_not_two_equal_ones() -> None:
    one = [1]
    assert digest_of([one, one]) != digest_of([[1], [1]])
    assert digest_of({"a": one, "b": one}) == digest_of(copy.deepcopy({"a": one, "b": one}))


def test_objects_outside_count_by_their_name() -> None:
    outside = Node(1)
    external = {id(outside): "server"}
    before = digest_of([outside], external=external)
    outside.value = 2
    assert digest_of([outside], external=external) == before
    assert digest_of([outside], external={id(outside): "other"}) != before


def test_moments_count_as_moments_only() -> None:
    clocks = frozenset({"since"})
    assert digest_of({"since": 1.0}, clocks=clocks) == digest_of({"since": 2.0}, clocks=clocks)
    assert digest_of({"since": {"s": 1.0}}, clocks=clocks) == digest_of({"since": {"s": 2.0}}, clocks=clocks)
    assert digest_of({"since": deque([1.0])}, clocks=clocks) == digest_of(
        {"since": deque([2.0])}, clocks=clocks
    )
    assert digest_of({"since": 1.0}, clocks=clocks) != digest_of({"since": None}, clocks=clocks)
    assert digest_of({"other": 1.0}, clocks=clocks) != digest_of({"other": 2.0}, clocks=clocks)


def test_tables_count_by_columns_types_and_values() -> None:
    pd = pytest.importorskip("pandas")
    make: Any = pd.DataFrame
    tables = [
        make({"a": [1, 2], "b": ["x", "y"]}),
        make({"a": [1, 3], "b": ["x", "y"]}),
        make({"a": [1.0, 2.0], "b": ["x", "y"]}),
        make({"a": [1, 2], "c": ["x", "y"]}),
        make({"a": [1, 2], "b": ["x", None]}),
        make({"a": [1, 2], "b": ["x", "y"]}, index=[5, 6]),
        make({"b": ["x", "y"], "a": [1, 2]}),
        pd.Series([1, 2], name="a"),
        pd.Series([1, 2], name="b"),
        pd.Series(["x", "y"], dtype=pd.CategoricalDtype(["x", "y"])),
        pd.Series(["x", "y"], dtype=pd.CategoricalDtype(["y", "x"])),
    ]
    digests = [digest_of(table) for table in tables]
    assert len(set(digests)) == len(tables)
    assert [digest_of(table.copy()) for table in tables] == digests
    rebuilt = [unpickled(pickled(table, {}).data, lambda name: None) for table in tables]
    assert [digest_of(table) for table in rebuilt] == digests


def test_what_cannot_be_compared_is_said() -> None:
    assert digest_and_opaque([1], external={}, most=10)[1] == ""
    assert digest_and_opaque([threading.Lock()], external={}, most=10)[1] == ""
    assert "thread" in digest_and_opaque([threading.current_thread()], external={}, most=10)[1]
    with pytest.raises(TooLarge):
        digest_of([1.5] * 100, most=50)


def test_tensors_count_by_type_shape_and_bits() -> None:
    torch = pytest.importorskip("torch")
    tensors = [
        torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, dtype=torch.bfloat16), torch.tensor(0.0), torch.tensor(1.0),
        torch.zeros(2, dtype=torch.bool),
    ]  # fmt: skip
    assert len({digest_of(tensor) for tensor in tensors}) == len(tensors)
    assert [digest_of(tensor.clone()) for tensor in tensors] == [digest_of(tensor) for tensor in tensors]


def test_nesting_beyond_what_python_bears_is_an_error_and_not_a_digest() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        digest_of(deep)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(values)
def test_any_value_survives_in_the_form_that_it_gets(value: Any) -> None:
    plain = encoded(value)
    again = decoded(plain) if plain is not None else unpickled(pickled(value, {}).data, lambda name: None)
    assert digest_of(again) == digest_of(value)


@pytest.mark.parametrize(
    "value",
    [{1: 2}, (1,), {"a": (1,)}, 1 << 63, math.nan, [math.inf], OrderedDict(a=1), "\ud800", True.__class__, b"", {"a": Color.RED}],
)  # fmt: skip
def test_what_json_does_not_say_is_not_plain(value: Any) -> None:
    assert encoded(value) is None


def test_a_list_that_is_met_twice_is_not_plain() -> None:
    inner: list[int] = [1]
    assert encoded([inner, inner]) is None
    assert encoded([inner, [1]]) == b"[[1],[1]]"
    inner.append(inner)  # type: ignore[arg-type]
    assert encoded(inner) is None
