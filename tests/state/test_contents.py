"""Classes derived from built-ins that answer in their own way: what they hold is saved, and they are not asked."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.state.values import ENCODINGS, POLICY, Holder, restored
from unbroken.capture.delegate import Delegate
from unbroken.state.graft import plan
from unbroken.state.places import visit
from unbroken.state.policy import Policy
from unbroken.state.walk import capture

asked: list[str] = []


class Shuffled(list[Any]):
    """Gives its members out in an order that it draws."""

    def __iter__(self) -> Iterator[Any]:
        asked.append("list")
        order = [list.__getitem__(self, i) for i in range(list.__len__(self))]
        random.shuffle(order)
        return iter(order)


class Backwards(tuple[Any, ...]):
    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        asked.append("tuple")
        return tuple.__iter__(self[::-1])

    def __len__(self) -> int:
        asked.append("tuple")
        return 0


class Odd(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        asked.append("set")
        return (member for member in list(set.__iter__(self)) if member % 2)


class Draining(collections.deque[Any]):
    """Gives its members away."""

    def __iter__(self) -> Iterator[Any]:
        asked.append("deque")
        while True:
            try:
                yield self.popleft()
            except IndexError:
                return

    def clear(self) -> None:
        asked.append("deque")

    def extend(self, items: Any) -> None:
        asked.append("deque")


class Recent(collections.OrderedDict[str, Any]):
    """What was asked for last comes last."""

    def __getitem__(self, key: str) -> Any:
        asked.append("ordered")
        self.move_to_end(key)
        return super().__getitem__(key)

    def items(self) -> Any:
        asked.append("ordered")
        return [(key, self[key]) for key in list(self)]


class Open(dict[str, Any]):
    """Its entries are its attributes, as many write it."""

    __getattr__ = dict.__getitem__


class Growing(dict[str, Any]):
    """Makes an entry for each name that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        asked.append(name)
        return self[name]

    def __missing__(self, key: str) -> Any:
        self[key] = made = Growing()
        return made


class Masked(str):
    __slots__ = ()

    def __str__(self) -> str:
        asked.append("str")
        return "***"


class Rounded(float):
    def __float__(self) -> float:
        asked.append("float")
        return 7.0

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = float.__hash__


class Off(int):
    def __int__(self) -> int:
        asked.append("int")
        return 7


class Short(bytes):
    def __bytes__(self) -> bytes:
        asked.append("bytes")
        return b""


VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any], type]] = {
    "list": (lambda: Shuffled([1, 2, 3]), lambda: Shuffled([9, 8, 7]), list),
    "tuple": (lambda: Backwards([1, 2]), lambda: Backwards([3, 4]), tuple),
    "set": (lambda: Odd([1, 2]), lambda: Odd([3]), set),
    "deque": (lambda: Draining([1, 2], maxlen=3), lambda: Draining([5], maxlen=3), collections.deque),
    "ordered": (lambda: Recent(a=1, b=2, c=3), lambda: Recent(c=3, b=2, a=1), collections.OrderedDict),
    "ordered alike": (lambda: Recent(a=1, b=2), lambda: Recent(a=1, b=2), collections.OrderedDict),
    "open": (lambda: Open(a=1), lambda: Open(a=2), dict),
    "growing": (lambda: Growing(a=1), lambda: Growing(a=2), dict),
    "str": (lambda: Masked("abc"), lambda: Masked("def"), str),
    "float": (lambda: Rounded(-0.0), lambda: Rounded(0.0), float),
    "int": (lambda: Off(3), lambda: Off(4), int),
    "bytes": (lambda: Short(b"abc"), lambda: Short(b"d"), bytes),
}


def held(value: Any, base: Any) -> Any:
    """Return what a value holds, read as the built-in that it is."""
    if issubclass(base, dict):
        return list(base.items(value))
    if base in (str, float, int, bytes):
        return base.__repr__(value)
    members = list(base.__iter__(value))
    return sorted(members) if base is set else members


@ENCODINGS
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("over", ["nothing", "its like"])
def test_comes_back_as_what_it_holds_and_is_not_asked(encoding: str, name: str, over: str) -> None:
    make, make_twin, base = VALUES[name]
    value, twin = make(), None if over == "nothing" else make_twin()
    before, generator = held(value, base), random.getstate()
    asked.clear()
    back = restored(encoding, value, twin)
    assert asked == []
    assert type(back) is type(value)
    assert held(back, base) == held(value, base) == before
    assert random.getstate() == generator


class Tells:
    """Tells a state of its own, and owns a generator in a list that draws when it is looked through."""

    def __init__(self) -> None:
        self.parts = Shuffled([random.Random(1), random.Random(2)])

    def capture(self) -> dict[str, int]:
        return {}

    def restore(self, state: dict[str, int]) -> None:
        pass


def test_what_an_object_owns_beside_its_state_is_looked_for_without_asking() -> None:
    asked.clear()
    tells = Delegate("capture", "restore")
    rules = POLICY.merged(Policy(codecs={"tests.state.test_contents:Tells": tells}))
    snapshot = capture({"root": Holder(value=Tells())}, rules)
    assert asked == []
    places = [place for place, _ in visit("root", snapshot.components["training_state"].roots["root"])]
    assert {"root/value/value/.parts.0", "root/value/value/.parts.1"} <= set(places)


def test_a_number_of_more_digits_than_python_writes_comes_back() -> None:
    class Big(int):
        pass

    twin = Holder(value=Big(10**5000))
    graft = plan(capture({"r": Holder(value=Big(10**5000))}, POLICY), {"r": twin}, POLICY)
    graft.apply()
    assert twin.__dict__["value"] == 10**5000
