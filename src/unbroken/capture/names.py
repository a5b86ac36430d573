"""What a function's code does with names that are not its own: globals, variables around it, attributes.

Read from its bytecode, which is there also where the source is not. Only what stands directly behind a name is
seen: `SEEN.append(x)`, `SEEN[key] = x`, `Mine.count += 1`.

Not promised: what is done through another name for the same object.
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

REACH = 16
"""Instructions behind a name that are looked at for what becomes of an item of it."""

_NOTHING = frozenset({"CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL", "NOT_TAKEN"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_CELL = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_MEMBER = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SET_ITEM = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "DUP_TOP_TWO"})
_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])


class Use(NamedTuple):
    """One use of a name. `attribute` is what stands behind it."""

    scope: Scope
    name: str
    act: str
    attribute: str = ""


def uses(code: types.CodeType) -> Iterator[Use]:
    """Yield what `code`, with the functions in it, does with names that are not its own."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]
    for i, step in enumerate(steps):
        name = str(step.argval)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield Use("global", name, ASSIGNED)
        elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars:
            yield Use("cell", name, ASSIGNED)
        elif step.opname in _GLOBAL:
            yield _use("global", name, steps, i + 1)
        elif step.opname in _CELL and name in code.co_freevars:
            yield _use("cell", name, steps, i + 1)
        elif step.opname in _MEMBER:
            yield _use("attribute", name, steps, i + 1)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            # A variable of this very function is no state: each call has its own.
            yield from (use for use in uses(constant) if not _is_local(use, code))


def _is_local(use: Use, code: types.CodeType) -> bool:
    return use.scope == "cell" and use.name in code.co_cellvars


def _use(scope: Scope, name: str, steps: Sequence[dis.Instruction], at: int) -> Use:
    behind = steps[at : at + REACH]
    if not behind:
        return Use(scope, name, PASSED)
    first = behind[0]
    if first.opname == "STORE_ATTR":
        return Use(scope, name, ASSIGNED, str(first.argval))
    doubled = first.opname == "DUP_TOP" or (first.opname == "COPY" and first.arg == 1)
    if doubled and len(behind) > 1 and behind[1].opname in _MEMBER:
        return Use(scope, name, ASSIGNED, str(behind[1].argval))
    if first.opname in _MEMBER:
        return Use(scope, name, USED, str(first.argval))
    return Use(scope, name, CHANGED if _sets_an_item(behind) else PASSED)


def _sets_an_item(behind: Sequence[dis.Instruction]) -> bool:
    """Whether the item of what lies on the stack now is set by what follows: first its key is made."""
    depth = 0
    for step in behind:
        copies = step.opname == "COPY" and step.arg == 2
        if depth == 1 and (step.opname in _SET_ITEM or copies):
            return True
        if depth == 2 and step.opname == "STORE_SLICE":
            return True
        if step.opcode in _JUMPS:
            return False
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth < 0:
            return False
    return False
