"""Generators of Python (functions with `yield`), as far as they can be put back.

Nothing can set where a suspended function stands, nor its local variables. But a data stream like

    while True:
        self.collect()
        yield self.sample()

stands at its `yield` in a fresh start, too, and holds nothing that is of use afterwards. So what counts is
whether the function stands where the program's own one stood at the start of the training, with every local
variable that is still to be read, every loop and every half-done expression the same; those that are objects
are restored in place. What cannot be shown to be the same is not (see `pieces`). Where that is so it is said,
by the name of the function and with what has to change.

Not promised: what C extensions suspend.
"""

from __future__ import annotations

import dis
import gc
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any

from unbroken.capture.pieces import Piece, Unreadable, piece_of
from unbroken.state.nodes import Dict, Value
from unbroken.state.policy import Policy
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

ENDED = -2
_FUNCTION = "<function>"
_ANEW = "<anew>"
_LOOP = "<loop "
_VALUE = "<value "


@dataclass(frozen=True)
class Stand:
    """Where a generator stands. `pieces` are the local variables that it is still to read, by name, and what
    it holds in the middle of loops and expressions. `unreadable` says why more cannot be told."""

    at: int
    pieces: dict[str, Piece] = field(default_factory=dict[str, Piece])
    unreadable: str = ""

    def obstacle(self, first: Stand) -> str:
        """Return why this stand cannot be reached from `first`, in the words of who wrote the function."""
        if self.unreadable:
            return self.unreadable
        if self.at != first.at:
            return "it stands at another `yield` than at the start"
        differing = [
            name
            for name in sorted({*self.pieces, *first.pieces})
            if (piece := self.pieces.get(name)) is None
            or (then := first.pieces.get(name)) is None
            or piece.text != then.text
        ]
        if any(name.startswith(_LOOP) for name in differing):
            return "a `for` loop inside it is further than at the start"
        if any(name.startswith(_VALUE) for name in differing):
            return "it is in the middle of an expression or a `with` that differs from the one at the start"
        if differing:
            return f"its local variable {differing[0]!r} has changed; keep it in an attribute"
        return ""

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield what is restored in place, each with a name."""
        for name, piece in self.pieces.items():
            for i, part in enumerate(piece.parts):
                yield f"{name}.{i}", part


def stand_of(generator: GeneratorType[Any, Any, Any], policy: Policy) -> Stand:
    """Return where a suspended generator stands, under the rules of a walk."""
    frame = generator.gi_frame
    if frame is None:
        return Stand(ENDED)
    if generator.gi_running:
        return Stand(frame.f_lasti, unreadable="it is running at this moment")
    variables = dict(frame.f_locals)
    held = _held_beside(generator, frame, variables)
    loops = [value for value in held if hasattr(type(value), "__next__")]
    if len(loops) < loops_around(generator.gi_code, frame.f_lasti):
        return Stand(frame.f_lasti, unreadable="nothing tells how far a `for` loop inside it is")
    found = {name: variables[name] for name in read_later(generator.gi_code, frame.f_lasti) & {*variables}}
    found |= {f"{_LOOP}{i}>": value for i, value in enumerate(loops)}
    values = [value for value in held if not hasattr(type(value), "__next__")]
    found |= {f"{_VALUE}{i}>": value for i, value in enumerate(values)}
    try:
        pieces = {name: piece_of(value, policy) for name, value in sorted(found.items())}
    except Unreadable as why:
        return Stand(frame.f_lasti, unreadable=str(why))
    return Stand(frame.f_lasti, pieces)


def _held_beside(
    generator: GeneratorType[Any, Any, Any], frame: FrameType, variables: dict[str, Any]
) -> list[Any]:
    """Return what a generator holds beside its local variables: iterators of `for` loops, what a `with` is to
    leave by, operands of an expression in which the `yield` stands."""
    code = generator.gi_code
    referents = gc.get_referents(generator)
    if sys.version_info < (3, 11):  # there everything lies in the frame
        referents += gc.get_referents(frame)
    cells = {*code.co_cellvars, *code.co_freevars}
    known = Counter(id(value) for name, value in variables.items() if name not in cells)
    known.update((id(generator.__name__), id(generator.__qualname__)))
    of_the_frame = {id(frame), id(code), id(frame.f_globals), id(frame.f_builtins), id(frame.f_locals)}
    found = []
    for value in referents:
        if id(value) in of_the_frame or isinstance(value, (CellType, FrameType, CodeType)):
            continue
        if isinstance(value, FunctionType) and value.__code__ is code:
            continue
        if known[id(value)] > 0:
            known[id(value)] -= 1
        else:
            found.append(value)
    return found


@lru_cache(maxsize=256)
def loops_around(code: CodeType, offset: int) -> int:
    """Return in how many `for` loops `offset` lies."""
    loops = [i for i in dis.get_instructions(code) if i.opname.startswith("FOR_ITER")]
    return sum(loop.offset < offset < loop.argval for loop in loops)


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
    """Codec of generators. One for each training: it remembers where each place's generator first stood.

    A place at which none stood in the first walk has none in a fresh start either. Exceptions are not
    followed: a variable that only an `except` clause reads comes back as it was first.
    """

    name = "python.generator"
    mutable = True

    def __init__(self) -> None:
        self._first: dict[str, tuple[CodeType, Stand]] = {}
        self._begin: weakref.ref[Walk] | None = None
        self._begun = False
        self._anew: weakref.WeakSet[GeneratorType[Any, Any, Any]] = weakref.WeakSet()
        """Those that a restore has left at their beginning: from there on the run is another one."""

    def begun(self) -> None:
        """The first walk is over, whether it has met a generator or not."""
        self._begun = True

    def encode(self, value: GeneratorType[Any, Any, Any], walk: Walk) -> Value:
        now = stand_of(value, walk.policy)
        payload: dict[str, Value] = {_FUNCTION: value.__qualname__}
        why = self._obstacle(value, now, walk)
        if why:
            walk.note("approximate", f"the generator {value.__qualname__} starts anew: {why}.")
            payload[_ANEW] = True
        else:
            payload |= {name: piece.text for name, piece in now.pieces.items()}
            payload |= {name: walk.child(name, part) for name, part in now.parts()}
        return Dict(v=payload)

    def _obstacle(self, value: GeneratorType[Any, Any, Any], now: Stand, walk: Walk) -> str:
        if self._begin is None and not self._begun:
            self._begin = weakref.ref(walk)
        if not self._begun and self._begin is not None and self._begin() is walk:
            self._first[walk.place] = value.gi_code, now
        if walk.place not in self._first:
            return "there was none here at the start"
        if value in self._anew:
            return "it was further when the run was interrupted"
        code, first = self._first[walk.place]
        return now.obstacle(first) if value.gi_code is code else "another function stood here at the start"

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        fields = payload.v if isinstance(payload, Dict) and payload.v is not None else {}
        if not isinstance(twin, GeneratorType) or not graft.claim(twin):
            if fields.get(_ANEW) is not True:
                return graft.refuse("a generator was saved, and the program has none here.", twin)
            graft.note("changed", f"the generator {fields.get(_FUNCTION)} starts anew.")
            return None if twin is MISSING else twin
        graft.register(twin)
        if fields.get(_FUNCTION) != twin.__qualname__:
            graft.note(
                "changed", f"{fields.get(_FUNCTION)} was saved; the program's {twin.__qualname__} stays."
            )
            return twin
        if fields.get(_ANEW) is True:
            graft.note("changed", f"the generator {twin.__qualname__} starts anew.")
            graft.write(self._anew.add, twin)
            return twin
        self._plan_pieces(fields, stand_of(twin, graft.policy), graft)
        return twin

    def _plan_pieces(self, fields: dict[str, Value], here: Stand, graft: Graft) -> None:
        parts = dict(here.parts())
        for name, node in fields.items():
            if name == _FUNCTION:
                continue
            if name in here.pieces:
                same = node == here.pieces[name].text
            else:
                same = name in parts and graft.value(name, node, parts[name]) is parts[name]
            if not same:
                graft.note_at(
                    name, "changed", "a local variable that cannot be set; the program's own stays."
                )


def frame_policy(codec: FrameCodec | None = None) -> Policy:
    """Return the rule for generators of one training."""
    return Policy(codecs={"builtins:generator": codec or FrameCodec()})
