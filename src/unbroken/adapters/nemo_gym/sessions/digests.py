"""A digest of live state: the same in every process if and only if the state is the same.

What counts: types, values to the last bit, the order of lists and of dicts (a program can see it, and the same calls give the
same order), and which parts are one object met twice. What does not: addresses, hashes of texts, the order of sets, moments of the
monotonic clock, locks. Objects outside of the state count by their name.
"""

from __future__ import annotations

import copyreg
import enum
import struct
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from blake3 import blake3

from unbroken.adapters.nemo_gym.sessions.live import LOCKS, kind_of, name_of

NOTHING: Mapping[int, str] = {}
_PROTOCOL = 4
_MANY = 8
_SIMPLE = frozenset({str, int, bool, type(None)})
"""Of these a long list is digested as JSON, which says the same and is quick."""
_encode = msgspec.json.Encoder().encode


class TooLarge(Exception):
    """More parts than were asked for."""


def plain_digest(data: bytes) -> str:
    """Return the digest of a state that JSON says completely (`plain.encoded`)."""
    return blake3(b"plain\0" + data).hexdigest(length=16)


def digest_of(
    value: object,
    *,
    external: Mapping[int, str] = NOTHING,
    clocks: frozenset[str] = frozenset(),
    most: int = 0,
) -> str:
    """Return the digest of a value of any kind.

    `external` names objects outside (id -> name). Floats under a name in `clocks` count as moments only. `most` bounds the
    number of parts looked at.

    Raises:
        TooLarge: there are more than `most`.
        RecursionError: it is nested too deeply.
    """
    walk = _Walk(external, clocks, most)
    walk.add(value)
    return walk.hasher.hexdigest(length=16)


def digest_and_opaque(value: object, *, external: Mapping[int, str], most: int) -> tuple[str, str]:
    """Return the digest of a value, and what in it cannot be compared: a live part other than a lock; "" if all can.

    Raises: as `digest_of`.
    """
    walk = _Walk(external, frozenset(), most)
    walk.add(value)
    return walk.hasher.hexdigest(length=16), walk.opaque


class _Walk:
    def __init__(self, external: Mapping[int, str], clocks: frozenset[str], most: int) -> None:
        self.hasher = blake3(b"objects\0")
        self._external = external
        self._clocks = clocks
        self._most = most
        self._parts = 0
        self.opaque = ""
        self._met: dict[int, int] = {}
        self._kept: list[object] = []
        """What was made for this walk: freed, its address would be given to another."""

    def add(self, value: Any, *, clock: bool = False) -> None:
        self._parts += 1
        if self._most and self._parts > self._most:
            raise TooLarge
        cls = type(value)
        if value is None or value is True or value is False:
            self._tag("c", repr(value))
        elif cls is str:
            self._put(b"s", cast("str", value).encode("utf-8", "surrogatepass"))
        elif cls is int:
            self._tag("i", str(value) if -(1 << 63) < value < 1 << 63 else hex(value))
        elif cls is float:
            self._put(b"t", b"") if clock else self._put(b"f", struct.pack("<d", value))
        elif cls is bytes or cls is bytearray:
            self._put(b"b" if cls is bytes else b"B", bytes(value))
        elif cls is tuple:
            self._tag("(", str(len(value)))
            for item in value:
                self.add(item, clock=clock)
        elif cls is frozenset:
            self._tag("Z", "")
            self._unordered(value)
        elif isinstance(value, type):
            self._tag("T", name_of(value))
        elif isinstance(value, enum.Enum):
            self._tag("E", f"{name_of(cls)}.{value.name}")
        else:
            self._object(value, cls, clock=clock)

    def _object(self, value: Any, cls: type, *, clock: bool) -> None:
        name = self._external.get(id(value))
        if name is not None:
            self._tag("x", name)
            return
        met = self._met.get(id(value))
        if met is not None:
            self._tag("r", str(met))
            return
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        if cls is dict:
            self._tag("{", str(len(value)))
            self._items(value, clock=clock)
        elif cls is list:
            self._tag("[", str(len(value)))
            self._entries(value, clock=clock)
        elif cls is set:
            self._tag("z", "")
            self._unordered(value)
        elif isinstance(value, types.MethodType):
            self._tag("m", value.__func__.__qualname__)
            self.add(value.__self__)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.BuiltinFunctionType):
            self._tag("u", value.__qualname__)
            if not isinstance(value.__self__, types.ModuleType):
                self.add(value.__self__)
        elif isinstance(value, types.ModuleType):
            self._tag("M", value.__name__)
        else:
            try:
                self._other(value, cls, clock=clock)
            except (RecursionError, TooLarge):
                raise
            except Exception as error:  # noqa: BLE001 - the user's code, which may raise anything; said in `opaque`
                self._tag("!", type(error).__name__)
                self.opaque = self.opaque or f"an object of {name_of(cls)}"

    def _other(self, value: Any, cls: type, *, clock: bool) -> None:
        kind = kind_of(value)
        package = cls.__module__.split(".", maxsplit=1)[0]
        if kind:
            self._tag("live", f"{kind} {name_of(cls)}")
            if kind not in LOCKS:
                self.opaque = self.opaque or f"{kind} ({name_of(cls)})"
            if kind == "an event":
                self.add(value.is_set())
        elif package == "numpy" and hasattr(value, "dtype") and hasattr(value, "tobytes"):
            self._array(value, cls)
        elif package == "pandas" and cls.__name__ in {"DataFrame", "Series", "Index"}:
            self._frame(value, cls)
        elif package == "torch" and hasattr(value, "detach"):
            self._tag("tensor", f"{value.dtype} {tuple(value.shape)} {value.requires_grad}")
            # A copy, since what numpy has been shown may not change its size any more.
            flat = value.detach().cpu().reshape(-1).view(sys.modules["torch"].uint8).clone()
            self._put(b"a", flat.numpy().tobytes())
        elif hasattr(cls, "model_fields") and hasattr(value, "__pydantic_fields_set__"):
            self._tag("P", name_of(cls))
            self._fields(vars(value))
            self.add(value.__pydantic_extra__)
            self.add(value.__pydantic_private__)
            self.add(sorted(value.__pydantic_fields_set__))
        else:
            self._reduced(value, cls, clock=clock)

    def _reduced(self, value: Any, cls: type, *, clock: bool) -> None:
        """By what the object itself says of its state to whoever copies it."""
        self._tag("O", name_of(cls))
        reducer: Any = copyreg.dispatch_table.get(cls)
        said: Any = reducer(value) if reducer is not None else value.__reduce_ex__(_PROTOCOL)
        if isinstance(said, str):
            self._tag("G", said)
            return
        self._kept.append(said)
        parts: list[Any] = [*said, None, None, None, None]
        function, arguments, state, entries, items = parts[:5]
        self.add(function)
        self.add(arguments)
        if isinstance(state, dict):
            self._fields(cast("dict[object, object]", state))
        else:
            self.add(state)
        if entries is not None:
            for entry in entries:
                self._kept.append(entry)
                self.add(entry, clock=clock)
        if items is not None:
            for key, item in items:
                self.add(key)
                self.add(item, clock=clock or (type(key) is str and key in self._clocks))

    def _fields(self, fields: Mapping[Any, Any]) -> None:
        self._tag("fields", str(len(fields)))
        self._items(fields, clock=False)

    def _items(self, items: Mapping[Any, Any], *, clock: bool) -> None:
        clocks = self._clocks
        for key, item in items.items():
            self.add(key)
            self.add(item, clock=clock or (bool(clocks) and type(key) is str and key in clocks))

    def _entries(self, values: list[Any], *, clock: bool) -> None:
        if len(values) >= _MANY and _SIMPLE.issuperset(map(type, values)):
            try:
                data = _encode(values)
            except (UnicodeEncodeError, OverflowError, ValueError):
                pass
            else:
                self._parts += len(values)
                self._put(b"J", data)
                return
        for item in values:
            self.add(item, clock=clock)

    def _unordered(self, values: Iterable[object]) -> None:
        digests = sorted(digest_of(value, external=self._external, clocks=self._clocks) for value in values)
        self._tag("#", " ".join(digests))

    def _array(self, value: Any, cls: type) -> None:
        self._tag("A", f"{name_of(cls)} {value.dtype.str} {value.dtype} {value.shape}")
        if value.dtype.hasobject:
            items = value.ravel().tolist()
            self._kept.append(items)
            self._entries(items, clock=False)
        else:
            self._put(b"a", value.tobytes())

    def _frame(self, value: Any, cls: type) -> None:
        self._tag("D", f"{cls.__name__} {value.shape}")
        if cls.__name__ == "DataFrame":
            self.add([*value.columns.tolist()])
            self._series_of(value.index)
            for position in range(value.shape[1]):
                self._series_of(value.iloc[:, position])
        else:
            self.add(value.name)
            self._series_of(value)
            if cls.__name__ == "Series":
                self._series_of(value.index)

    def _series_of(self, column: Any) -> None:
        self._tag(
            "column", f"{column.dtype} {column.name!r}" if isinstance(column.name, str) else str(column.dtype)
        )
        if hasattr(column.dtype, "categories"):
            self.add([*column.dtype.categories.tolist(), column.dtype.ordered])
        values = column.to_numpy()
        self._kept.append(values)
        self.add(values)

    def _function(self, value: types.FunctionType) -> None:
        self._tag("F", f"{value.__module__}.{value.__qualname__}")
        if "<" in value.__qualname__:  # by name it is not found again, so it is what it says
            self._code(value.__code__)
            self.add(value.__defaults__)
            self.add(value.__kwdefaults__)
            for cell in value.__closure__ or ():
                try:
                    self.add(cell.cell_contents)
                except ValueError:
                    self._tag("empty", "")

    def _code(self, code: types.CodeType) -> None:
        self._put(b"code", code.co_code)
        self.add(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self.add(constant)

    def _tag(self, tag: str, text: str) -> None:
        self._put(tag.encode(), text.encode("utf-8", "surrogatepass"))

    def _put(self, tag: bytes, data: bytes) -> None:
        self.hasher.update(b"%s %d\0" % (tag, len(data)))
        self.hasher.update(data)
