"""What a function's code does with names that are not its own: globals, variables around it, attributes.
And which names are read in a loop.

Read from its bytecode, which is there also where the source is not. A value is followed from where its name is
read, on every way through the code, to what takes it off the stack: `SEEN.append(x)`, `SEEN[f(x)] = y`,
`(SEEN if x else OTHER).append(x)`, `SEEN[i][j] += 1`, `Mine.count += 1`.

Not promised: what is done through another name for the same object, and so in a function that it is handed to;
what a method does to an item of it (`SEEN[i].append(x)`); what is reached through an attribute of another
object (`CONFIG.seen.append(x)`); handlers of exceptions that are entered while the value is on the stack.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Scope: TypeAlias = Literal["global", "cell", "attribute"]

USED: Final = "used"
"""An attribute of it is read or called."""
PASSED: Final = "passed"
"""It is handed on, or used in a way that this does not follow."""
CHANGED: Final = "changed"
"""An item of it is set or deleted."""
ASSIGNED: Final = "assigned"
"""The name is bound anew, or with an `attribute`, that is set."""
READ: Final = "read"
"""It is compared, or looked at for whether it is true."""

_NOTHING = frozenset({
    "CACHE", "EXTENDED_ARG", "NOP", "RESUME", "NOT_TAKEN", "KW_NAMES", "GEN_START", "COPY_FREE_VARS", "MAKE_CELL",
    "SETUP_ANNOTATIONS",
})  # fmt: skip
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_CELL = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_LOCAL = frozenset({
    "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "LOAD_FAST_BORROW",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
})  # fmt: skip
_MEMBER = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_MEMBER_OF_SUPER = "LOAD_SUPER_ATTR"
"""Since 3.12; before, `super` is called like any function."""
_READS = frozenset({"IS_OP", "CONTAINS_OP", "COMPARE_OP", "TO_BOOL", "UNARY_NOT", "POP_TOP"})

_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])
_ALWAYS_JUMPS = frozenset(
    {"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_NO_INTERRUPT"}
)
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ROTATES = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}
_TAKES = {
    "LOAD_ATTR": 1, "LOAD_METHOD": 1, _MEMBER_OF_SUPER: 3, "UNPACK_SEQUENCE": 1, "UNPACK_EX": 1, "BEFORE_WITH": 1,
    "BEFORE_ASYNC_WITH": 1, "SETUP_WITH": 1, "SETUP_ASYNC_WITH": 1, "STORE_FAST_LOAD_FAST": 1,
}  # fmt: skip
"""What an instruction takes off the stack, where its effect on the depth does not say it."""
_LEAVES_NOTHING = (
    "STORE_", "DELETE_", "POP_", "RETURN_", "RAISE_", "RERAISE", "LIST_APPEND", "LIST_EXTEND", "SET_ADD", "SET_UPDATE",
    "MAP_ADD", "DICT_", "JUMP", "PRECALL", "END_", "IMPORT_STAR", "PRINT_EXPR", "CLEANUP_THROW",
)  # fmt: skip


class Use(NamedTuple):
    """One use of a name. `attribute` is what stands behind it."""

    scope: Scope
    name: str
    act: str
    attribute: str = ""


def uses(code: types.CodeType) -> Iterator[Use]:
    """Yield what `code`, with the functions in it, does with names that are not its own."""
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        name = str(step.argval)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield Use("global", name, ASSIGNED)
        elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars:
            yield Use("cell", name, ASSIGNED)
        elif step.opname in _GLOBAL:
            yield from _uses("global", name, steps, i)
        elif step.opname in _CELL and name in code.co_freevars:
            yield from _uses("cell", name, steps, i)
        elif step.opname in _MEMBER or step.opname == _MEMBER_OF_SUPER:
            yield from _uses("attribute", name, steps, i)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            # A variable of this very function is no state: each call has its own.
            yield from (use for use in uses(constant) if not _is_local(use, code))


def read_in_loop(code: types.CodeType, at: int) -> frozenset[str]:
    """Return the names that are read in the body of a `for` loop of `code`, and by the comprehensions and lambdas in it.
    `at` is the offset of what asks for the next item; where that is no such loop there are none.

    The body is what comes back to the loop's head, wherever it stands: what only leaves the loop may stand among it,
    and handlers of exceptions behind it."""
    steps = list(dis.get_instructions(code))
    head = max((i for i, step in enumerate(steps) if step.offset <= at), default=0)
    while steps[head].opname == "EXTENDED_ARG":  # Python 3.10 says that it is there
        head += 1
    if steps[head].opname != "FOR_ITER":
        return frozenset()
    index = {step.offset: i for i, step in enumerate(steps)}
    before: dict[int, list[int]] = {}
    # From before the head comes only what begins the loop: what gets there only that way is of a loop around it.
    for i, step in enumerate(steps[head + 1 :], head + 1):
        if step.opcode in _JUMPS:
            before.setdefault(index[step.argval], []).append(i)
        if step.opname not in _ALWAYS_JUMPS | _ENDS:
            before.setdefault(i + 1, []).append(i)
    open_, body = [head], set[int]()
    while steps[open_[-1] - 1].opname == "EXTENDED_ARG":  # jumps go to the first of them
        open_.append(open_[-1] - 1)
    while open_:
        new = set(before.get(open_.pop(), ())) - body
        body |= new
        open_ += new
    return frozenset(name for i in body for name in _read(steps[i]))


def _read(step: dis.Instruction) -> Iterator[str]:
    value: object = step.argval
    if step.opname in _GLOBAL | _CELL:
        yield str(value)
    elif step.opname in _LOCAL:
        names = value if isinstance(value, tuple) else (value,)
        yield from (str(name) for name in (names[1:] if step.opname.startswith("STORE_") else names))
    elif isinstance(value, types.CodeType) and value.co_name.startswith("<"):
        inner = (other for other in dis.get_instructions(value) if other.opname not in _LOCAL)
        yield from (name for other in inner for name in _read(other))


def _is_local(use: Use, code: types.CodeType) -> bool:
    return use.scope == "cell" and use.name in code.co_cellvars


def _uses(scope: Scope, name: str, steps: Sequence[dis.Instruction], at: int) -> Iterator[Use]:
    """Yield what becomes of the value that the instruction `at` puts on the stack, each way once."""
    return (Use(scope, name, act, attribute) for act, attribute in dict.fromkeys(_Way(steps).follow(at + 1)))


class _Way:
    """Follows one value on the stack. `depth`: how many values lie on it. `item`: it is an item of the value."""

    def __init__(self, steps: Sequence[dis.Instruction]) -> None:
        self._steps = steps
        self._seen: set[tuple[int, int, bool]] = set()
        self._open: list[tuple[int, int, bool]] = []

    def follow(self, at: int) -> Iterator[tuple[str, str]]:
        """Yield each end: the act, and the attribute."""
        self._go(at, 0, item=False)
        while self._open:
            i, depth, item = self._open.pop()
            step = self._steps[i]
            if self._is_moved(i, step, depth, item=item):
                continue
            effect = dis.stack_effect(step.opcode, step.arg, jump=False)
            if _taken(step, effect) > depth:
                if step.opname.endswith("_OR_POP"):
                    self._go(self._target(step), depth, item=item)
                if (step.opname, depth) in (("BINARY_SUBSCR", 1), ("BINARY_SLICE", 2)):
                    self._go(i + 1, 0, item=True)
                else:
                    yield _end(step, depth, item=item)
                continue
            if step.opcode in _JUMPS:
                jumped = dis.stack_effect(step.opcode, step.arg, jump=True)
                self._go(self._target(step), depth + jumped, item=item)
            if step.opname not in _ALWAYS_JUMPS | _ENDS:
                self._go(i + 1, depth + effect, item=item)

    def _go(self, i: int, depth: int, *, item: bool) -> None:
        state = (i, depth, item)
        if i < len(self._steps) and depth >= 0 and state not in self._seen:
            self._seen.add(state)
            self._open.append(state)

    def _target(self, step: dis.Instruction) -> int:
        return next(i for i, other in enumerate(self._steps) if other.offset == step.argval)

    def _is_moved(self, i: int, step: dis.Instruction, depth: int, *, item: bool) -> bool:
        """Whether an instruction only moves or copies what lies on the stack, or does nothing."""
        op, arg = step.opname, step.arg or 0
        size = arg if op == "ROT_N" else _ROTATES.get(op, 0)
        if op in _NOTHING:
            self._go(i + 1, depth, item=item)
        elif op == "SWAP":
            self._go(i + 1, {0: arg - 1, arg - 1: 0}.get(depth, depth), item=item)
        elif size:
            self._go(i + 1, size - 1 if depth == 0 else depth - (depth < size), item=item)
        elif op in ("COPY", "DUP_TOP", "DUP_TOP_TWO"):
            among = range(2) if op == "DUP_TOP_TWO" else (arg - 1,) if op == "COPY" else (0,)
            self._go(i + 1, depth + (2 if op == "DUP_TOP_TWO" else 1), item=item)
            if depth in among:
                self._go(i + 1, depth if op == "DUP_TOP_TWO" else 0, item=item)
        else:
            return False
        return True


def _taken(step: dis.Instruction, effect: int) -> int:
    """Return how many values an instruction takes off the stack: it leaves one, unless it says otherwise."""
    if step.opname in _TAKES:
        return _TAKES[step.opname]
    left = 0 if step.opname.startswith(_LEAVES_NOTHING) else max(1, effect)
    return max(0, left - effect)


def _end(step: dis.Instruction, depth: int, *, item: bool) -> tuple[str, str]:
    """Return what an instruction does to a value that it takes from under `depth` others."""
    op = step.opname
    if op in _MEMBER and not item:
        return USED, str(step.argval)
    if op in ("STORE_ATTR", "DELETE_ATTR") and depth == 0:
        return (CHANGED, "") if item else (ASSIGNED, str(step.argval))
    if (op, depth) in (("STORE_SUBSCR", 1), ("DELETE_SUBSCR", 1), ("STORE_SLICE", 2)):
        return CHANGED, ""
    if op in _READS or op.startswith(("POP_JUMP", "JUMP_IF")):
        return READ, ""
    return PASSED, ""
