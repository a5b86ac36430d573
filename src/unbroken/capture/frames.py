"""Generators of Python (functions with `yield`), as far as they can be put back.

Nothing can set where a suspended function stands, nor its local variables. But a data stream like

    while True:
        self.collect()
        yield self.sample()

stands at its `yield` in a fresh start, too, and holds nothing that is of use afterwards. So what counts is
whether the function stands where the program's own one stood when it was first seen, with every local
variable that is still to be read the same; those that are objects are restored in place. Where that is not so
it is said, by the name of the function and with what has to change.

Not promised: what C extensions suspend.
"""

from __future__ import annotations

import dis
import gc
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

from unbroken.state.nodes import PLAIN, Dict, Value
from unbroken.state.policy import Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

ENDED = -2
_FUNCTION = "<function>"
_ANEW = "<anew>"


@dataclass(frozen=True)
class Stand:
    """Where a generator stands. `variables` are those that it is still to read; `loops` are the iterators
    of its `for` loops, as text that tells how far each is."""

    at: int
    variables: dict[str, Any] = field(default_factory=dict)
    loops: tuple[str, ...] = ()

    def obstacle(self, first: Stand) -> str:
        """Return why this stand cannot be reached from `first`, in the words of who wrote the function."""
        if self.at != first.at:
            return "it stands at another `yield` than at the start"
        if self.loops != first.loops:
            return "a `for` loop inside it is further than at the start"
        for name, value in self.variables.items():
            if name not in first.variables or _kind(value) != _kind(first.variables[name]):
                return f"its local variable {name!r} has changed; keep it in an attribute"
        return ""


def stand_of(generator: GeneratorType[Any, Any, Any]) -> Stand:
    """Return where a suspended generator stands."""
    frame = generator.gi_frame
    if frame is None:
        return Stand(ENDED)
    variables = dict(frame.f_locals)
    names = read_later(generator.gi_code, frame.f_lasti)
    known = {id(value) for value in variables.values()}
    held = [o for o in gc.get_referents(generator) if isinstance(o, Iterator) and id(o) not in known]
    return Stand(
        frame.f_lasti,
        {name: value for name, value in variables.items() if name in names},
        tuple(map(_progress, held)),
    )


def _progress(iterator: Any) -> str:
    if isinstance(iterator, GeneratorType):
        inner = stand_of(iterator)
        return f"{iterator.__qualname__} {inner.at} {[*map(_kind, inner.variables.values())]} {inner.loops}"
    left = operator.length_hint(iterator, -1)
    # One that does not tell how far it is may be anywhere: never the same as another.
    return f"{type(iterator).__qualname__} {left if left >= 0 else id(iterator)}"


def _kind(value: Any) -> str:
    """Return all of a value that cannot be written into it: itself if it is plain, else what it is."""
    if type(value) in PLAIN or isinstance(value, (bytes, complex, range)):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_kind, value))})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{type(value).__module__}:{type(value).__qualname__} {shape if dtype is not None else ''}{dtype}"


@lru_cache(maxsize=256)
def read_later(code: CodeType, offset: int) -> frozenset[str]:
    """Return the local variables that `code`, suspended at `offset`, may read before it sets them again.

    A variable that no instruction sets or reads under a known name counts as read.
    """
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: i for i, instruction in enumerate(instructions)}
    reads: list[frozenset[str]] = []
    sets: list[frozenset[str]] = []
    for instruction in instructions:
        read, written = _touched(instruction)
        reads.append(read)
        sets.append(written)
    needed: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:  # backwards, until nothing is added: loops need a second round
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            after = frozenset().union(*(needed[j] for j in _next(instructions, places, i)))
            now = reads[i] | (after - sets[i])
            if now != needed[i]:
                needed[i], changed = now, True
    begin = places.get(offset, -1) + 1
    cells = frozenset(code.co_cellvars) | frozenset(code.co_freevars)
    return (needed[begin] if begin < len(needed) else frozenset()) | cells


def _touched(instruction: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Return the variables that an instruction reads first, and those that it sets."""
    name, value = instruction.opname, instruction.argval
    names = [value] if isinstance(value, str) else [v for v in value or () if isinstance(v, str)] if isinstance(value, tuple) else []  # fmt: skip
    if "FAST" not in name:
        return frozenset(), frozenset()
    if name.startswith(("STORE_FAST_LOAD", "LOAD_FAST_AND_CLEAR")):
        # Sets one and reads another, or saves one for later: nothing is left out by counting both as read.
        return frozenset(names), frozenset()
    if name.startswith("STORE"):
        return frozenset(), frozenset(names)
    return (frozenset(), frozenset()) if name.startswith("DELETE") else (frozenset(names), frozenset())


_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")


def _next(instructions: list[dis.Instruction], places: dict[int, int], i: int) -> list[int]:
    instruction = instructions[i]
    name = instruction.opname
    after = [i + 1] if i + 1 < len(instructions) else []
    if name in _LEAVES:
        return []
    if "JUMP" not in name and not name.startswith(("FOR_ITER", "SEND")):
        return after
    target = [places[instruction.argval]] if instruction.argval in places else []
    always = name.startswith(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_NO", "JUMP"))
    return target if always and "IF" not in name else [*target, *after]


class FrameCodec:
    """Codec of generators. One for each training: it remembers where each function first stood.

    Exceptions are not followed: a variable that only an `except` clause reads comes back as it was first.
    """

    name = "python.generator"
    mutable = True

    def __init__(self) -> None:
        self._first: dict[CodeType, Stand] = {}

    def encode(self, value: GeneratorType[Any, Any, Any], walk: Walk) -> Value:
        now = stand_of(value)
        first = self._first.setdefault(value.gi_code, now)
        payload: dict[str, Value] = {_FUNCTION: value.__qualname__}
        why = now.obstacle(first)
        if why:
            walk.note("approximate", f"the generator {value.__qualname__} starts anew: {why}.")
            payload[_ANEW] = True
        else:
            payload |= {name: walk.child(name, held) for name, held in now.variables.items()}
        return Dict(v=payload)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        fields = payload.v if isinstance(payload, Dict) and payload.v is not None else {}
        if not isinstance(twin, GeneratorType) or not graft.claim(twin):
            return graft.refuse("a generator was saved, and the program has none here.", twin)
        graft.register(twin)
        if fields.get(_FUNCTION) != twin.__qualname__:
            graft.note(
                "changed", f"{fields.get(_FUNCTION)} was saved; the program's {twin.__qualname__} stays."
            )
            return twin
        if fields.get(_ANEW) is True:
            graft.note("changed", f"the generator {twin.__qualname__} starts anew.")
            return twin
        held = stand_of(twin).variables
        for name, node in fields.items():
            if name == _FUNCTION:
                continue
            if name not in held or graft.value(name, node, held[name]) is not held[name]:
                graft.note_at(
                    name, "changed", "a local variable that cannot be set; the program's own stays."
                )
        return twin


def frame_policy() -> Policy:
    """Return the rule for generators of one training."""
    return Policy(codecs={"builtins:generator": FrameCodec()})
