"""What a function's code does with names that are not its own: globals, variables around it, attributes.
And what a loop does with names, its own too.

Read from its bytecode, which is there also where the source is not. A value is followed from where its name is
read, on every way through the code, to what takes it off the stack: `SEEN.append(x)`, `SEEN[f(x)] = y`,
`(SEEN if x else OTHER).append(x)`, `SEEN[i][j] += 1`, `Mine.count += 1`.

Not promised: what is done through another name for the same object, and so in a function that it is handed to; what
is reached through an attribute of another object (`CONFIG.seen.append(x)`); handlers of exceptions that are entered
while the value is on the stack; in a loop, names that are read only by such handlers or by functions that it calls.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Scope: TypeAlias = Literal["global", "cell", "attribute", "local"]

USED: Final = "used"
"""An attribute of it is read or called."""
ITEM_USED: Final = "item used"
"""An attribute of an item of it is read or called."""
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
_BINDS = frozenset({
    "STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL",
    "DELETE_DEREF",
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


def all_uses(code: types.CodeType) -> Iterator[Use]:
    """Yield what `uses` does, and what `code` itself does with its own variables, parameters among them."""
    yield from uses(code)
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname in _LOCAL or (step.opname in _CELL and step.argval in code.co_cellvars):
            yield from _acts(steps, i)


class Loop(NamedTuple):
    """What a `for` loop does with names, in the comprehensions and lambdas of its body too."""

    read: frozenset[str]
    """Names that the body reads."""
    carried: frozenset[str]
    """Of the names that the loop may read before it has bound them, or leave as they were: what stood there before an
    iteration began counts."""
    bound: frozenset[str]
    """Names that the body binds."""
    rebound: frozenset[str]
    """Those of `bound` that it binds otherwise than by an operation in place, as in `weights += 1`."""
    acts: frozenset[Use]
    """What the body itself does with what names stand for, those of attributes too."""


NO_LOOP: Final = Loop(frozenset(), frozenset(), frozenset(), frozenset(), frozenset())


def loop_at(code: types.CodeType, at: int) -> Loop:
    """Return what the `for` loop of `code` does whose next item is asked for at the offset `at`; `NO_LOOP` where that is
    none.

    The body is what comes back to the loop's head, wherever it stands: what only leaves the loop may stand among it,
    and handlers of exceptions behind it."""
    steps = list(dis.get_instructions(code))
    head = max((i for i, step in enumerate(steps) if step.offset <= at), default=0)
    while steps[head].opname == "EXTENDED_ARG":  # Python 3.10 says that it is there
        head += 1
    if steps[head].opname != "FOR_ITER":
        return NO_LOOP
    index = {step.offset: i for i, step in enumerate(steps)}
    after = [_after(i, step, index) for i, step in enumerate(steps)]
    body = _body(head, steps, after)
    doing = [_Names.of(step) for step in steps]
    # What a comprehension of the body binds is its own, from Python 3.12 on in the code around it.
    own = {name for i in body for name in doing[i].hidden}
    return Loop(
        read=frozenset(name for i in body for name in doing[i].read),
        carried=frozenset(_live(doing, after)[head + 1] - own),
        bound=frozenset({name for i in body for name in doing[i].bound} - own),
        rebound=frozenset(
            {name for i in body if not _is_in_place(steps[i - 1]) for name in doing[i].bound} - own
        ),
        acts=frozenset(use for i in body for use in _acts(steps, i)),
    )


def _is_in_place(step: dis.Instruction) -> bool:
    return step.opname.startswith("INPLACE_") or (step.opname == "BINARY_OP" and step.argrepr.endswith("="))


def _after(i: int, step: dis.Instruction, index: dict[int, int]) -> list[int]:
    """Return which instructions may come next."""
    following = [] if step.opname in _ALWAYS_JUMPS | _ENDS else [i + 1]
    return [*following, index[step.argval]] if step.opcode in _JUMPS and step.argval in index else following


def _body(head: int, steps: Sequence[dis.Instruction], after: Sequence[list[int]]) -> set[int]:
    before: dict[int, list[int]] = {}
    # From before the head comes only what begins the loop: what gets there only that way is of a loop around it.
    for i in range(head + 1, len(steps)):
        for following in after[i]:
            before.setdefault(following, []).append(i)
    open_, body = [head], set[int]()
    while steps[open_[-1] - 1].opname == "EXTENDED_ARG":  # jumps go to the first of them
        open_.append(open_[-1] - 1)
    while open_:
        new = set(before.get(open_.pop(), ())) - body
        body |= new
        open_ += new
    return body


def _live(doing: Sequence[_Names], after: Sequence[list[int]]) -> list[frozenset[str]]:
    """Return for each instruction the names that may be read from there on before they are bound; by exceptions no
    code is reached here."""
    live = [frozenset[str]()] * (len(doing) + 1)
    changed = True
    while changed:
        changed = False
        for i in range(len(doing) - 1, -1, -1):
            later = frozenset[str]().union(*(live[following] for following in after[i]))
            new = doing[i].before(later)
            changed |= new != live[i]
            live[i] = new
    return live


class _Names(NamedTuple):
    """The names of variables that one instruction reads and binds; `hidden`: it puts them aside for a while."""

    read: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    binds_first: bool = False

    def before(self, later: frozenset[str]) -> frozenset[str]:
        """Return which names count before the instruction if these do after it."""
        if self.binds_first:
            return (later | self.read) - self.bound
        return later - self.bound | self.read

    @classmethod
    def of(cls, step: dis.Instruction) -> _Names:
        op = step.opname
        value: object = step.argval
        names = tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
        if op == "LOAD_FAST_AND_CLEAR":
            return cls(hidden=frozenset(names))
        if op == "STORE_FAST_LOAD_FAST":
            return cls(frozenset(names[1:]), frozenset(names[:1]), binds_first=True)
        if op in _GLOBAL | _CELL | _LOCAL or op == "LOAD_CLOSURE":
            return cls(read=frozenset(names))
        if op in _BINDS:
            return cls(bound=frozenset(names))
        if isinstance(value, types.CodeType) and value.co_name.startswith("<"):
            inner = (cls.of(other) for other in dis.get_instructions(value) if other.opname not in _LOCAL)
            return cls(read=frozenset[str]().union(*(names.read for names in inner)))
        return cls()


def _acts(steps: Sequence[dis.Instruction], i: int) -> Iterator[Use]:
    """Yield what becomes of the values that an instruction reads from variables or attributes."""
    step = steps[i]
    if step.opname in _MEMBER or step.opname == _MEMBER_OF_SUPER:
        yield from _uses("attribute", str(step.argval), steps, i)
        return
    value: object = step.argval
    if isinstance(value, types.CodeType):
        if value.co_name.startswith("<"):
            yield from uses(value)
    elif step.opname in _GLOBAL:
        yield from _uses("global", str(value), steps, i)
    elif step.opname in _CELL:
        yield from _uses("cell", str(value), steps, i)
    elif step.opname in _LOCAL:
        names = value if isinstance(value, tuple) else (value,)
        loaded = names[1:] if step.opname.startswith("STORE_") else names
        for depth, name in enumerate(reversed(loaded)):
            yield from _uses("local", str(name), steps, i, depth)


def _is_local(use: Use, code: types.CodeType) -> bool:
    return use.scope == "cell" and use.name in code.co_cellvars


def _uses(
    scope: Scope, name: str, steps: Sequence[dis.Instruction], at: int, depth: int = 0
) -> Iterator[Use]:
    """Yield what becomes of the value that the instruction `at` puts on the stack under `depth` others, each way once."""
    ways = _Way(steps).follow(at + 1, depth)
    return (Use(scope, name, act, attribute) for act, attribute in dict.fromkeys(ways))


class _Way:
    """Follows one value on the stack. `depth`: how many values lie on it. `item`: it is an item of the value."""

    def __init__(self, steps: Sequence[dis.Instruction]) -> None:
        self._steps = steps
        self._seen: set[tuple[int, int, bool]] = set()
        self._open: list[tuple[int, int, bool]] = []

    def follow(self, at: int, depth: int = 0) -> Iterator[tuple[str, str]]:
        """Yield each end: the act, and the attribute."""
        self._go(at, depth, item=False)
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
    if op in _MEMBER:
        return (ITEM_USED if item else USED), str(step.argval)
    if op in ("STORE_ATTR", "DELETE_ATTR") and depth == 0:
        return (CHANGED, "") if item else (ASSIGNED, str(step.argval))
    if (op, depth) in (("STORE_SUBSCR", 1), ("DELETE_SUBSCR", 1), ("STORE_SLICE", 2)):
        return CHANGED, ""
    if op in _READS or op.startswith(("POP_JUMP", "JUMP_IF")):
        return READ, ""
    return PASSED, ""
