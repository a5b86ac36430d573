from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.capture.values import Unrecordable, from_data, to_data
from unbroken.errors import CorruptObject


def plain(value: Any) -> Any:
    """Return a form in which classes, dtypes and shapes count too."""
    kind = type(value).__name__
    if isinstance(value, (np.ndarray, np.generic)):
        return (kind, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, (list, tuple)):
        return (kind, [plain(item) for item in value])
    if isinstance(value, deque):
        return (kind, value.maxlen, [plain(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return (kind, sorted(map(repr, value)))
    if isinstance(value, dict):
        return (kind, [(plain(key), plain(item)) for key, item in value.items()])
    return (kind, repr(value))


hashable = st.one_of(
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.float64, st.floats()),
    st.builds(np.int16, st.integers(-300, 300)),
    st.builds(np.bool_, st.booleans()),
)
leaves = st.one_of(
    hashable,
    st.binary(max_size=4).map(bytearray),
    st.lists(st.integers(-128, 127), max_size=5).map(lambda v: np.array(v, np.int8)),
    st.just(np.arange(6.0).reshape(2, 3).T),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda items: deque(items, 3)),
        st.dictionaries(hashable, inner, max_size=3),
        st.frozensets(st.integers(0, 99), max_size=3),
        st.frozensets(st.text(max_size=2), max_size=3).map(set),
    ),
    max_leaves=8,
)


@given(trees)
def test_every_bit_and_every_class_comes_back(value: Any) -> None:
    through_text = json.loads(json.dumps(to_data(value)))
    assert plain(from_data(through_text)) == plain(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.Generator(np.random.MT19937(3)),
        lambda: np.random.RandomState(3),
    ],
)
def test_a_generator_goes_on_in_place(make: Any) -> None:
    def draw(generator: Any) -> list[float]:
        normal = generator.gauss if isinstance(generator, random.Random) else generator.normal
        return [float(normal(0, 1)) for _ in range(3)]

    one, own, foreign = make(), make(), "no generator"
    draw(one)
    data = json.loads(json.dumps(to_data(one)))
    expected = draw(one)
    assert from_data(data, own) is own
    assert draw(own) == expected
    assert draw(from_data(data, foreign)) == expected


def test_an_array_is_filled_in_place_if_it_has_the_same_form() -> None:
    data = to_data(np.arange(3.0))
    own, other = np.zeros(3), np.zeros(4)
    assert from_data(data, own) is own
    assert own.tolist() == [0, 1, 2]
    assert from_data(data, other) is not other
    assert not other.any()


class Derived(list[int]):
    pass


@pytest.mark.parametrize("value", [object(), Derived([1]), np.array([None]), [object()], {"a": print}])
def test_what_has_no_place_is_refused(value: Any) -> None:
    with pytest.raises(Unrecordable):
        to_data(value)


@pytest.mark.parametrize("value", [np.zeros(101), [0] * 101, "x" * 101, [[[0] * 40] * 2] * 2])
def test_what_is_too_large_is_refused(value: Any) -> None:
    to_data(value)
    with pytest.raises(Unrecordable, match="of that size"):
        to_data(value, largest=100)


def test_a_value_in_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Unrecordable):
        to_data(value)


@pytest.mark.parametrize(
    "data",
    [
        {"=unknown": 1},
        {"=array": ["|O8", [1], ""]},
        {"=array": ["<f8", [2], "00"]},
        {"=scalar": ["<f8"]},
        {"=generator": {"=dict": [["bit_generator", "Evil"]]}},
        {"=random": [1]},
        {"a": 1, "b": 2},
        {},
    ],
)
def test_damage_is_named_as_such(data: Any) -> None:
    with pytest.raises(CorruptObject, match="recorded value"):
        from_data(data)
