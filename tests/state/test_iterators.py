"""Iterators of Python go on where they stood: made anew, in every place in which they stood."""

from __future__ import annotations

import array
import itertools
import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state.values import ENCODINGS, POLICY, restored
from unbroken.capture.tracked import Tracked
from unbroken.errors import ConfigError, CorruptObject
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.nodes import Coded, Object
from unbroken.state.walk import capture

LETTERS = [5, "text", None, 2.5, -1]


class Holder:
    """An object with one attribute."""

    def __init__(self, v: Any) -> None:
        self.v = v


class Old:
    """A sequence of the old kind, iterated by its index."""

    def __init__(self) -> None:
        self.items = ["a", "b", "c"]

    def __getitem__(self, index: int) -> str:
        return self.items[index]


def double(value: Any) -> Any:
    return value * 2 if isinstance(value, (int, float)) else value


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: iter(list(LETTERS)),
    "tuple": lambda: iter(tuple(LETTERS)),
    "text": lambda: iter("some text"),
    "other text": lambda: iter("\xe9\u4e00!"),
    "bytes": lambda: iter(b"bytes"),
    "bytearray": lambda: iter(bytearray(b"bytes")),
    "array": lambda: iter(array.array("i", [3, 1, 2])),
    "numpy": lambda: iter(np.arange(6.0).reshape(3, 2)),
    "packed": lambda: iter([float(i) for i in range(90)]),
    "old": lambda: iter(Old()),
    "range": lambda: iter(range(3, 40, 4)),
    "falling range": lambda: iter(range(9, -9, -2)),
    "empty range": lambda: iter(range(0)),
    "long range": lambda: iter(range(2**70, 2**70 + 9, 3)),
    "reversed list": lambda: reversed(list(LETTERS)),
    "reversed tuple": lambda: reversed(tuple(LETTERS)),
    "reversed text": lambda: reversed("text"),
    "reversed range": lambda: reversed(range(5)),
    "enumerate": lambda: enumerate(list(LETTERS), 7),
    "zip": lambda: zip(list(LETTERS), range(9), strict=False),
    "zip of nothing": zip,
    "strict zip": lambda: zip("abc", (1, 2, 3), strict=True),
    "map": lambda: map(double, list(LETTERS)),
    "filter": lambda: filter(None, [0, 1, 0, 2, 3]),
    "nested": lambda: enumerate(zip(map(double, iter(range(9))), reversed("abcde"), strict=False)),
    "count": lambda: itertools.count(3, 2),
    "falling count": lambda: itertools.count(0.5, -0.25),
    "repeat": lambda: itertools.repeat("x", 4),
    "repeat for ever": lambda: itertools.repeat([1]),
    "chain": lambda: itertools.chain([1, 2], (3,), range(4)),
    "chain of chains": lambda: itertools.chain.from_iterable(iter([[1, 2], [], [3]])),
    "cycle": lambda: itertools.cycle([1, "a", 2.0]),
    "cycle of nothing": lambda: itertools.cycle([]),
    "cycle of one": lambda: itertools.cycle("z"),
    "slice": lambda: itertools.islice(range(30), 2, 20, 3),
    "slice without end": lambda: itertools.islice(itertools.count(), 1, None, 2),
}  # fmt: skip


def drawn(iterator: Any, number: int) -> list[Any]:
    items = itertools.islice(iterator, number)
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in items]


def advanced(make: Callable[[], Any], number: int) -> Any:
    iterator = make()
    for _ in range(number):  # on beyond the end, where it lets go of what it ran over
        next(iterator, None)
    return iterator


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25)
@given(at=st.integers(0, 12), twin_at=st.integers(0, 12), more=st.integers(0, 9))
def test_an_iterator_goes_on_where_it_stood(name: str, at: int, twin_at: int, more: int) -> None:
    saved, twin = {"it": advanced(KINDS[name], at)}, {"it": advanced(KINDS[name], twin_at)}
    snapshot = capture(saved, POLICY)
    assert snapshot.notes == []
    root = Holder(v=twin["it"])
    graft = plan(capture({"root": Holder(v=saved["it"])}, POLICY), {"root": root}, POLICY)
    graft.apply()
    assert graft.differences == []
    assert compare(snapshot, capture({"it": root.v}, POLICY)) == []
    assert type(root.v) is type(saved["it"]) or "range" in name
    # Nothing was taken out of the one that was saved, and both go on alike however often that is repeated.
    assert drawn(root.v, more) == drawn(saved["it"], more)
    assert compare(capture(saved, POLICY), capture({"it": root.v}, POLICY)) == []
    assert drawn(root.v, 40) == drawn(saved["it"], 40)


@ENCODINGS
@pytest.mark.parametrize("name", KINDS)
def test_it_comes_back_where_nothing_stood(encoding: str, name: str) -> None:
    if name == "map":
        pytest.skip("a function is never built from a document")
    expected = drawn(advanced(KINDS[name], 2), 20)
    twins: list[Any] = [None, 5, [1], iter(()), {"v": iter([9])}]
    for twin in twins:
        held: list[Any] = [KINDS["nested"](), twin]  # the program has the function somewhere
        back = restored(encoding, [KINDS["nested"](), advanced(KINDS[name], 2)], held)
        assert drawn(back[1], 20) == expected


@ENCODINGS
def test_it_is_replaced_wherever_it_stands_and_stays_shared(encoding: str) -> None:
    def state(at: int) -> dict[str, Any]:
        one = advanced(KINDS["range"], at)
        return {
            "list": [one, 1],
            "dict": {"k": one, 3: (one,)},
            "object": Holder(v=one),
            "deque": deque([one]),
        }

    back = restored(encoding, state(3), state(0))
    places = [back["list"][0], back["dict"]["k"], back["dict"][3][0], back["object"].v, back["deque"][0]]
    assert [next(place) for place in places] == [15, 19, 23, 27, 31]


@ENCODINGS
def test_it_runs_over_the_sequence_that_the_program_has(encoding: str) -> None:
    def state(at: int) -> dict[str, Any]:
        items = [1, 2, 3]
        return {"it": advanced(lambda: iter(items), at), "items": items, "back": reversed(items)}

    twin = state(0)
    items = twin["items"]
    items += [7, 8]
    back = restored(encoding, state(2), twin)
    assert back["items"] is items
    items.append(4)
    assert list(back["it"]) == [3, 4]
    assert list(back["back"]) == [3, 2, 1]
    items.append(5)
    assert list(back["it"]) == []  # it has ended for good, as any


@ENCODINGS
def test_one_that_has_ended_lets_go_of_its_list(encoding: str) -> None:
    items = [1]
    ended = advanced(lambda: iter(items), 2)
    back = restored(encoding, {"it": ended, "items": items}, {"it": iter([]), "items": [5]})
    back["items"].append(2)
    assert list(back["it"]) == []


@ENCODINGS
def test_an_iterator_met_inside_of_two_others_is_one(encoding: str) -> None:
    def state(at: int) -> list[Any]:
        one = advanced(lambda: iter(range(100)), at)
        return [zip(one, one, strict=False), one, itertools.chain(one, "ab"), itertools.islice(one, 3)]

    pairs, one, chained, sliced = restored(encoding, state(10), state(0))
    assert [next(pairs), next(one), next(chained), list(sliced)] == [(10, 11), 12, 13, [14, 15, 16]]


@ENCODINGS
def test_a_generator_inside_stays_the_program_s_and_is_named(encoding: str) -> None:
    def state() -> Holder:
        return Holder(v=enumerate(x for x in range(5)))

    saved = state()
    next(saved.v)
    snapshot = capture({"root": saved}, POLICY)
    assert [(note.kind, note.place) for note in snapshot.notes] == [("not captured", "root/v/value/0")]
    assert next(restored(encoding, saved, state()).v) == (1, 0)


@pytest.mark.parametrize(
    "value",
    [
        (i for i in range(3)), iter({1: 2}), iter({1: 2}.items()), iter({1, 2}), iter(deque([1])),
        iter(OrderedDict(a=1)), itertools.product([1], [2]), itertools.groupby([1]), itertools.tee([1])[0],
        itertools.count(Decimal(1)), iter(memoryview(b"ab")),
    ],
)  # fmt: skip
def test_what_does_not_tell_where_it_stands_is_named(value: Any) -> None:
    root = Holder(v=value)
    snapshot = capture({"root": root}, POLICY)
    assert [note.kind for note in snapshot.notes] == ["not captured"]
    graft = plan(snapshot, {"root": root}, POLICY)
    graft.apply()
    assert root.v is value


class Ids(itertools.count):  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]
    """One that a program derives has attributes, and they do not say how far it is."""


class Pairs(zip):  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]
    pass


class Doubles(map):  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]
    pass


class Rows(enumerate):  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]
    __slots__ = ("name",)


class Counts:
    """One of a program's own shows all."""

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        self.at += 1
        return self.at


@pytest.mark.parametrize(
    "value",
    [Ids(3), Pairs([1], [2]), Doubles(double, [1, 2]), Rows("ab")],
    ids=["count", "zip", "map", "enumerate"],
)
def test_one_derived_from_an_iterator_in_c_is_named_and_stays(value: Any) -> None:
    root = Holder(v=value)
    snapshot = capture({"root": root}, POLICY)
    assert [(note.kind, note.place) for note in snapshot.notes] == [("not captured", "root/v")]
    assert type(value).__qualname__ in snapshot.notes[0].detail
    plan(snapshot, {"root": root}, POLICY).apply()
    assert root.v is value


@ENCODINGS
def test_one_written_in_python_goes_on(encoding: str) -> None:
    saved = Holder(v=Counts())
    next(saved.v)
    assert capture({"root": saved}, POLICY).notes == []
    assert next(restored(encoding, saved, Holder(v=Counts())).v) == 2


@ENCODINGS
def test_one_that_its_own_list_holds_goes_on(encoding: str) -> None:
    def state(at: int) -> dict[str, Any]:
        items: list[Any] = [1, 2]
        items.append((advanced(lambda: iter(items), at),))
        return {"it": items[2][0], "items": items}

    back = restored(encoding, state(1), state(0))
    assert back["items"][2] == (back["it"],)
    assert list(back["it"]) == [2, (back["it"],)]


@pytest.mark.parametrize("name", KINDS)
def test_it_is_kept_in_a_variable_and_not_tracked_by_itself(name: str) -> None:
    with pytest.raises(ConfigError, match=r"ids is a .* cannot be changed in place"):
        Tracked().add({"ids": KINDS[name]()})


def test_a_list_that_has_become_shorter_is_named() -> None:
    items = [1, 2, 3, 4]
    iterator = advanced(lambda: iter(items), 3)
    del items[1:]
    assert [note.kind for note in capture({"it": iterator}, POLICY).notes] == ["approximate"]


def test_nothing_is_announced_to_the_user() -> None:
    names = ("chain", "cycle", "slice", "repeat")
    with warnings.catch_warnings(record=True) as announced:
        warnings.simplefilter("always")
        for name in names:
            restored("msgpack", Holder(v=advanced(KINDS[name], 2)), Holder(v=KINDS[name]()))
    assert announced == []
    assert sys.version_info < (3, 14) or "cycle" in names


@pytest.mark.parametrize(
    "never_ends", [itertools.count(), itertools.cycle([1]), itertools.repeat(1), iter(range(3))]
)
def test_a_forged_end_of_what_tells_none_is_refused_in_the_plan(never_ends: Any) -> None:
    saved = capture({"it": Holder(never_ends)}, POLICY)
    (component,) = saved.components.values()
    holder = component.roots["it"]
    assert isinstance(holder, Object)
    coded = holder.a["v"]
    assert isinstance(coded, Coded)
    forged = Object(id=holder.id, c=holder.c, a={"v": Coded(id=coded.id, k=coded.k, c=coded.c)})
    component.roots["it"] = forged
    twin = Holder(iter("untouched"))
    with pytest.raises(CorruptObject, match="parts of an iterator"):
        plan(saved, {"it": twin}, POLICY)
    assert list(twin.v) == list("untouched")
