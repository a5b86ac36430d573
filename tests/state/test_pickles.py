from __future__ import annotations

import copyreg
import pickle
import struct
import sys
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unbroken.errors import Untrusted
from unbroken.state import pickles

ran: list[str] = []


class Gauge:
    """A class that a person might name. It writes down whenever something of it runs."""

    def __init__(self, value: object = None) -> None:
        ran.append("made")
        self.value = value

    def __call__(self, *_: object) -> None:
        ran.append("called")

    def __setstate__(self, state: dict[str, Any]) -> None:
        ran.append("given its state")
        vars(self).update(state)

    class Inner:
        pass


class Plain:
    limit = 3


class Left:
    """Its pickle calls a function of the tests, as a hostile one calls `os.system`."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return function, ("done",)


def function(word: str) -> None:
    ran.append(word)


GAUGE = f"{__name__}.Gauge"
PLAIN = f"{__name__}.Plain"
PACKAGE = __name__


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def named(*names: str) -> frozenset[str]:
    return frozenset(names)


def of(name: str) -> bytes:
    """Return the opcodes that put what `name`, module and name parted by a colon, leads to on the stack."""
    module, _, attribute = name.partition(":")
    return b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, attribute)) + b"\x93"


def test_what_is_named_is_loaded_with_all_that_it_holds() -> None:
    held = {"list": [1, 2.5, None], "set": {1, 2}, "bytes": bytearray(b"x"), "queue": deque([1], 3)}
    before = Plain()
    vars(before).update(held, ordered=OrderedDict(a=1), number=1 + 2j, window=slice(1, 2))
    after = pickles.load(pickle.dumps(before, 5), named(PLAIN))
    assert type(after) is Plain
    assert vars(after) == vars(before)


def test_a_nested_class_is_named_by_its_whole_name() -> None:
    data = pickle.dumps(Gauge.Inner(), 5)
    assert type(pickles.load(data, named(f"{GAUGE}.Inner"))) is Gauge.Inner
    with pytest.raises(Untrusted, match=r"Gauge\.Inner"):
        pickles.load(data, named(GAUGE))


def test_every_class_that_is_not_named_is_told_before_anything_runs() -> None:
    data = pickle.dumps([Gauge(3), Plain(), Left()], 5)
    ran.clear()
    with pytest.raises(Untrusted) as raised:
        pickles.load(data, named(GAUGE))
    assert PLAIN in raised.value.message
    assert f"{PACKAGE}.function" in raised.value.message
    assert "trust" in raised.value.hint
    assert ran == []


def test_a_function_is_not_called_even_if_it_is_named() -> None:
    with pytest.raises(Untrusted, match="not the name of a class"):
        pickles.load(pickle.dumps(Left(), 5), named(f"{PACKAGE}.function"))
    assert ran == []


HOSTILE = {
    "a call of the system": b"cposix\nsystem\n(S'true'\ntR.",
    "a name below a class that is named": b"\x80\x05" + of(f"{PACKAGE}:Gauge.__init__.__globals__") + b".",
    "what a module has imported": b"\x80\x05" + of(f"{PACKAGE}:sys.modules") + b".",
    "a call of an object": b"\x80\x05" + of(f"{PACKAGE}:Gauge") + b")\x81)R.",
    "a class that is changed": b"\x80\x05" + of(f"{PACKAGE}:Plain") + b"N}\x8c\x05limitK\x09s\x86b.",
    "a class that is given a state": b"\x80\x05" + of(f"{PACKAGE}:Gauge") + b"}b.",
    "a registry that others fill": b"\x80\x02\x82\x01.",
    "an object from elsewhere": b"\x80\x05K\x01Q.",
    "a buffer from elsewhere": b"\x80\x05\x97.",
    "a number of objects that it has not": b"K\x00r\xff\xff\xff\x7f.",
    "bytes that it has not": b"\x80\x05\x8e" + struct.pack("<Q", 1 << 60) + b".",
    "a frame that it has not": b"\x80\x05\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "an array of a size that it announces": b"\x80\x05" + of("numpy:ndarray") + b"\x8a\x05\x00\x00\x00\x00\x7f\x85R.",
    "an array that is made empty": b"\x80\x05" + of("numpy._core.multiarray:_reconstruct") + of("numpy:ndarray")
    + b"\x8a\x05\x00\x00\x00\x00\x7f\x85\x43\x01b\x87R.",
    "an array of objects": b"\x80\x05" + of("numpy:dtype") + b"\x8c\x01O\x85R.",
    "bytes that leave their frame": b"\x80\x05\x95\x08" + bytes(7) + b"\x96\x04" + bytes(7) + b"abcd.",
    "an array with a state of another type": pickle.dumps(np.arange(6)[::2], 5).replace(b"C\x18", b"\x96\x18\0\0\0\0\0\0\0"),
    "a type of numbers with fields": pickle.dumps(np.dtype("i4"), 5).replace(b"NNNJ", b"N}NJ"),
    "a type of numbers of another size": pickle.dumps(np.dtype("i4"), 5).replace(b"J\xff\xff\xff\xffK\x00t", b"K\x7fK\x00t"),
    "a state for an array that has one": pickle.dumps(np.arange(3.0), 5)[:-1] + b"(K\x01K\x03\x85NN\x89tb.",
    "an array that is changed": pickle.dumps(np.arange(3.0), 5)[:-1] + b"K\x00K\x01s.",
    "a scalar of a few bytes": pickle.dumps(np.float32(1), 5).replace(b"C\x04\x00\x00\x80\x3f", b"C\x02\x80\x3f"),
    "nothing": b"",
    "half of a pickle": pickle.dumps(Plain(), 5)[:-3],
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_plain_pickle_does_is_refused(what: str) -> None:
    copyreg.add_extension(PACKAGE, "function", 1)
    try:
        with pytest.raises(Untrusted):
            pickles.load(HOSTILE[what], named(GAUGE, PLAIN, "numpy.ndarray"))
    finally:
        copyreg.remove_extension(PACKAGE, "function", 1)
    assert ran == []
    assert Plain.limit == 3


ARRAYS = {
    "floats": np.arange(5.0),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "every other": np.arange(6)[::2],
    "none": np.zeros((0, 3), np.float32),
    "big-endian": np.arange(3, dtype=">i4"),
    "one": np.float32(2.5),
    "flags": np.array([True, False]),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_arrays_of_numbers_come_back_where_they_are_named(what: str) -> None:
    before: Any = ARRAYS[what]
    data = pickle.dumps(before, 5)
    after = pickles.load(data, named("numpy.ndarray"))
    assert (after.dtype, after.shape, after.tobytes()) == (before.dtype, before.shape, before.tobytes())
    with pytest.raises(Untrusted, match="numpy"):
        pickles.load(data, named(PLAIN))


def test_the_type_that_all_arrays_share_is_not_changed() -> None:
    kind = np.dtype("i4")
    swapped = pickle.dumps(np.dtype(">i4"), 5)
    assert pickles.load(swapped, named("numpy.ndarray")).byteorder == ">"
    assert np.dtype("i4") is kind
    assert kind.byteorder == "="


def test_a_module_is_imported_only_for_a_class_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seldom_seen.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = b"\x80\x05" + of("seldom_seen:Thing") + b")\x81."
    try:
        with pytest.raises(Untrusted, match=r"seldom_seen\.Thing"):
            pickles.load(data, named(PLAIN))
        assert "seldom_seen" not in sys.modules
        assert type(pickles.load(data, named("seldom_seen.Thing"))).__name__ == "Thing"
    finally:
        sys.modules.pop("seldom_seen", None)


def test_whoever_trusts_everything_gets_everything() -> None:
    pickles.load(pickle.dumps(Left(), 5), True)
    assert ran == ["done"]
