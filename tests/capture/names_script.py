"""What code does with names, under the Python that runs this: `python names_script.py PATH_OF_NAMES`.

Prints a line for each function or loop that is understood otherwise than its entry here says. Needs nothing but the
standard library, so that any interpreter can run it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any

CASES: list[tuple[str, str, list[str]]] = [
    ("SEEN.append(1)", "SEEN", ["used append"]),
    ("SEEN[k] = 1", "SEEN", ["changed"]),
    ("SEEN[k] += 1", "SEEN", ["changed", "passed"]),
    ("del SEEN[k]", "SEEN", ["changed"]),
    ("SEEN[a:b] = x", "SEEN", ["changed"]),
    ("SEEN[a:b] += x", "SEEN", ["changed", "passed"]),
    ("SEEN[f(a, b(c), d=1)] = 1", "SEEN", ["changed"]),
    ("SEEN[a.b(c).d[e]] = 1", "SEEN", ["changed"]),
    ("SEEN[a if b else c] = 1", "SEEN", ["changed"]),
    ("SEEN[a and b or c] += 1", "SEEN", ["changed", "passed"]),
    ("SEEN[a < b < c] = 1", "SEEN", ["changed"]),
    ("SEEN[[i for i in a][0]] = 1", "SEEN", ["changed"]),
    ("SEEN[f'{a}{b!r}:{c:>3}'] = 1", "SEEN", ["changed"]),
    ("SEEN[(a, *b), {c: d}, {e}, a + b + c + d + e + f + g + h + i + j + k] = 1", "SEEN", ["changed"]),
    ("SEEN[i][j] = 1", "SEEN", ["changed"]),
    ("SEEN[i][j][k] += 1", "SEEN", ["changed", "passed"]),
    ("SEEN[i].x = 1", "SEEN", ["changed"]),
    ("(SEEN if a else OTHER).append(1)", "SEEN", ["used append"]),
    ("(OTHER if a else SEEN).append(1)", "SEEN", ["used append"]),
    ("(SEEN or OTHER).append(1)", "SEEN", ["read", "used append"]),
    ("(OTHER or SEEN).append(1)", "SEEN", ["used append"]),
    ("(OTHER if a else SEEN)[k] = 1", "SEEN", ["changed"]),
    ("f(SEEN.append(1))", "SEEN", ["used append"]),
    ("f(a, b)(SEEN)", "SEEN", ["passed"]),
    ("x = SEEN", "SEEN", ["passed"]),
    ("other[SEEN] = 1", "SEEN", ["passed"]),
    ("other[k] = SEEN", "SEEN", ["passed"]),
    ("other.x = SEEN", "SEEN", ["passed"]),
    ("(SEEN + [1])[0] = 2", "SEEN", ["passed"]),
    ("[1, SEEN, 2][0] = 2", "SEEN", ["passed"]),
    ("f(SEEN)[0] = 2", "SEEN", ["passed"]),
    ("x = SEEN[k]", "SEEN", ["passed"]),
    ("x = SEEN[k].append(1)", "SEEN", ["item used append"]),
    ("SEEN[i][j].append(1)", "SEEN", ["item used append"]),
    ("x = SEEN[k].y", "SEEN", ["item used y"]),
    ("x = a in SEEN", "SEEN", ["read"]),
    ("x = SEEN is None", "SEEN", ["read"]),
    ("if SEEN:\n        a()", "SEEN", ["read"]),
    ("while not SEEN:\n        a()", "SEEN", ["read"]),
    ("for x in SEEN:\n        a()", "SEEN", ["passed"]),
    ("with SEEN as s:\n        a()", "SEEN", ["passed"]),
    ("a, b = SEEN", "SEEN", ["passed"]),
    ("SEEN.count += 1", "SEEN", ["assigned count", "used count"]),
    ("SEEN.count = f(a) if b else c", "SEEN", ["assigned count"]),
    ("del SEEN.count", "SEEN", ["assigned count"]),
    ("return [SEEN.pop() for _ in a]", "SEEN", ["used pop"]),
    ("return lambda: SEEN.pop()", "SEEN", ["used pop"]),
    ("yield SEEN", "SEEN", ["passed"]),
    ("return SEEN", "SEEN", ["passed"]),
    ("self.seen.append(1)", "seen", ["used append"]),
    ("self.seen[k if a else f(b)] = 1", "seen", ["changed"]),
    ("super().seen.append(1)", "seen", ["used append"]),
    ("super().seen[k] = 1", "seen", ["changed"]),
    ("x = super().seen", "seen", ["passed"]),
    ("super(f, self).seen.append(1)", "seen", ["used append"]),
    ("global SEEN\n    SEEN = 1", "SEEN", ["assigned"]),
    ("global SEEN\n    SEEN += a", "SEEN", ["assigned", "passed"]),
    ("nonlocal cell\n    cell += 1", "cell", ["assigned", "passed"]),
    ("cell.append(1)", "cell", ["used append"]),
    ("cell[f(a)] = 1", "cell", ["changed"]),
]
"""A function's body, a name in it, and what is done with it, sorted."""

LOOPS = [
    "out_a()\nfor s in steps():\n    in_a(in_b)\nout_b()",
    "for s in steps():\n    in_a()\nelse:\n    out_a()",
    "for s in through(steps()):\n    in_a()\nout_a()",
    "passed = steps()\nout_a()\nfor s in passed:\n    in_a()\nout_a(passed)",
    "for i, s in enumerate(steps()):\n    if s:\n        in_a()\n        continue\n    x = in_b if s else in_c\nout_a()",
    "for s in steps():\n    in_a()\n    if s:\n        out_a()\n        break\nelse:\n    out_b()\nout_c()",
    "for s in steps():\n    in_a()\n    if s:\n        break\nout_a()",
    "for s in steps():\n    in_a()\n    if s:\n        out_a()\n        raise KeyError\nout_b()",
    "for s in steps():\n    try:\n        in_a()\n    except KeyError:\n        in_b()\n    finally:\n        in_c()\nout_a()",
    "try:\n    out_a()\n    for s in steps():\n        in_a()\nexcept KeyError:\n    out_b()\nfinally:\n    out_c()",
    "for s in steps():\n    try:\n        in_a()\n    except KeyError:\n        out_a()\n        break\nout_b()",
    "with out_a():\n    for s in steps():\n        with in_a() as a:\n            in_b()\n    out_b()\nout_c()",
    "for k in (1, 2):\n    out_a()\n    for s in steps():\n        in_a()\n        for j in in_b:\n            in_c()\n    out_b()",
    "for k in (1, 2):\n    try:\n        for s in steps():\n            in_a()\n    except KeyError:\n        out_a()\n    out_b()",
    "k = 2\nwhile k:\n    k -= 1\n    for s in steps():\n        while in_a():\n            in_b()\n    out_a()",
    "for s in steps():\n    x = [in_a(i) for i in in_b]\n    y = sorted(x, key=lambda i: in_c(i))\nout_a(lambda: out_b())",
    "for s in steps():\n    a.out_a()\n    in_a.out_b()\n    a.out_c = 1\n    in_b[in_c] = 1",
    "next(steps(), None)\nout_a()",
    "passed = steps()\nfor k in (1, 2):\n    next(passed, None)\n    out_a()",
    "passed = steps()\nwhile next(passed, None):\n    out_a()",
    "sum(out_a(s) for s in steps())\nout_b()",
    "out_a()\nfor s in steps():\n    in_a()\n" + "    a.b[s] = a.c(s)\n" * 300 + "    in_b()\nout_b()",
]
"""What asks for `steps`: names that begin with `in_` are read in its loop, and those with `out_` are not."""

CARRYING: list[tuple[str, list[str]]] = [
    ("for s in steps():\n    c += 1", ["c"]),
    ("for s in steps():\n    x = c\n    c = s", ["c"]),
    ("for s in steps():\n    x = s\n    y = x\n    x = y", []),
    ("for s in steps():\n    if s:\n        c = s\n    x = c", ["c"]),
    ("for s in steps():\n    if s:\n        c = s\n    else:\n        c = 0\n    x = c", []),
    ("for s in steps():\n    if s:\n        c = s\nx(c)", ["c"]),
    ("for s in steps():\n    c = s\nx(c)", []),
    ("for s in steps():\n    x(c)", []),
    ("for k in (1, 2):\n    c = 0\n    for s in steps():\n        c += s\n    x(c)", ["c"]),
    ("for s in steps():\n    c = 0\n    for k in x:\n        c += k", []),
    ("for s in steps():\n    for k in x:\n        c = y(c)", ["c"]),
    ("for s in steps():\n    while c:\n        c -= 1", ["c"]),
    ("for s in steps():\n    a, c = c, a", ["a", "c"]),
    ("for s in steps():\n    x = [c for c in y]\n    x(a)", []),
    ("for s in steps():\n    x = [c for k in y]\n    c = x", ["c"]),
    ("for s in steps():\n    x = lambda: c\n    c = x()", ["c"]),
    ("for s in steps():\n    try:\n        x(c)\n    finally:\n        c = s", ["c"]),
    ("for s in steps():\n    with x:\n        c = y(c)", ["c"]),
    ("for s in steps():\n    del c\n    c = s\n    x(c)", []),
    ("for s in steps():\n    if s:\n        continue\n    c = x(c)", ["c"]),
    ("c = 0\nfor s in steps():\n    x(s)\nc += 1", []),
    ("for s in steps():\n" + "    a.b[s] = a.c(s)\n" * 300 + "    c += 1", ["c"]),
]
"""A loop, and the names that it binds and hands from one iteration to the next."""

REBINDING: list[tuple[str, list[str]]] = [
    ("c += 1", []),
    ("c @= a(b)", []),
    ("c = c + 1", ["c"]),
    ("c[0] += 1", []),
    ("c.x += 1", []),
    ("a, c = c, s", ["a", "c"]),
    ("c += 1\n    c = s", ["c"]),
    ("x = [c for c in y]", ["x"]),
]
"""What a loop's body does, and the names that may stand for another object then."""

ACTING: list[tuple[str, str, list[str]]] = [
    ("c.append(s)", "c", ["used append"]),
    ("c[s] = 1", "c", ["changed"]),
    ("c.x = s", "c", ["assigned x"]),
    ("c.x += s", "c", ["assigned x", "used x"]),
    ("x = a(c)", "c", ["passed"]),
    ("a.c.append(s)", "c", ["used append"]),
    ("a(b, c[s])", "c", ["passed"]),
    ("b, c[s]", "c", ["passed"]),
    ("c + c", "c", ["passed"]),
    ("b[s] = c[s] = a", "c", ["changed"]),
    ("b = c.append", "c", ["used append"]),
    ("b = s\n    c.add(b)", "c", ["used add"]),
]
"""What a loop's body does, a name, and what is done with what that stands for."""


def code_of(body: str) -> CodeType:
    source = f"def around(cell):\n  class C:\n   def act(self):\n    {body}\n  return C"
    code = compile(source, "case", "exec")
    for _ in range(3):  # the function around, the class, its method
        (code,) = (one for one in code.co_consts if isinstance(one, CodeType))
    return code


def wrong(names: Any) -> list[str]:
    found: list[str] = []
    for body, name, expected in CASES:
        acts = {f"{use.act} {use.attribute}".strip() for use in names.uses(code_of(body)) if use.name == name}
        if sorted(acts) != expected:
            found.append(f"{body}: {sorted(acts)} and not {expected}")
    return found


class Steps:
    """Has no step; says what is read in the loop that asks for the first."""

    def __init__(self, names: Any) -> None:
        self.names, self.frame = names, sys._getframe(2)
        self.read: set[str] = set()
        self.carried: set[str] = set()
        self.rebound: set[str] = set()
        self.acts: set[tuple[str, str]] = set()

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        loop = self.names.loop_at(self.frame.f_code, self.frame.f_lasti)
        self.read, self.carried = set(loop.read), set(loop.carried & loop.bound)
        self.rebound = set(loop.rebound - {"s"})
        self.acts = {(use.name, f"{use.act} {use.attribute}".strip()) for use in loop.acts}
        raise StopIteration


class Whatever:
    """Stands before, in and after a loop."""

    def __call__(self, *_: object) -> Whatever:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def through(steps: Iterator[int]) -> Iterator[int]:
    yield from steps


def wrong_loops(names: Any) -> list[str]:
    found: list[str] = []
    for body in LOOPS:
        words = set(re.findall(r"(?:in|out)_\w", body))
        inside = {word for word in words if word.startswith("in_")}
        local = f"def train({', '.join(sorted(words))}):\n{textwrap.indent(body, '    ')}\ntrain(*[any_] * {len(words)})"
        cells = f"def around():\n    {' = '.join(sorted(words))} = any_\n"
        cells += (
            textwrap.indent(f"def train():\n{textwrap.indent(body, '    ')}\ntrain()", "    ") + "\naround()"
        )
        function = f"def train():\n{textwrap.indent(body, '    ')}\nfor _ in range(40):\n    train()"
        for source in (body, function, local, cells):
            made: list[Steps] = []

            def steps(made: list[Steps] = made) -> Steps:
                made.append(Steps(names))
                return made[-1]

            exec(
                source,
                {**dict.fromkeys(words, Whatever()), "any_": Whatever(), "steps": steps, "through": through},
            )
            for read in ({word for word in one.read if word in words} for one in made):
                if read != inside:
                    found.append(f"{source[:400]}: {sorted(read)} and not {sorted(inside)}")
                    break
    return found


def wrong_names(names: Any) -> list[str]:
    found: list[str] = []
    for body, expected in CARRYING:
        for source in forms(body):
            carried = sorted(of_its_loop(source, names).carried)
            if carried != expected:
                found.append(f"{source[:400]}: {carried} and not {expected}")
    for body, expected in REBINDING:
        for source in forms(f"for s in steps():\n    {body}"):
            rebound = sorted(of_its_loop(source, names).rebound)
            if rebound != expected:
                found.append(f"{source}: {rebound} and not {expected}")
    for body, name, expected in ACTING:
        for source in forms(f"for s in steps():\n    {body}"):
            acts = sorted(act for one, act in of_its_loop(source, names).acts if one == name)
            if acts != expected:
                found.append(f"{source}: {acts} and not {expected}")
    return found


def forms(body: str) -> Iterator[str]:
    """Yield the code as a module has it, a function, and one whose variables functions in it see."""
    names = "abcxy"
    words = [name for name in names if re.search(rf"\b{name}\b", body)]
    given = f"{' = '.join(words)} = any_\n"
    yield given + body
    yield f"def train():\n{textwrap.indent(given + body, '    ')}\ntrain()"
    seen = f"def inner():\n    return {', '.join(words)}\n"
    yield f"def train():\n{textwrap.indent(given + seen + body, '    ')}\ntrain()"


def of_its_loop(source: str, names: Any) -> Steps:
    made: list[Steps] = []

    def steps() -> Steps:
        made.append(Steps(names))
        return made[-1]

    exec(source, {"any_": Whatever(), "steps": steps})
    return made[-1]


def main() -> None:
    spec = importlib.util.spec_from_file_location("names", sys.argv[1])
    assert spec is not None and spec.loader is not None
    names = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    print("\n".join([sys.version.split()[0], *wrong(names), *wrong_loops(names), *wrong_names(names)]))


if __name__ == "__main__":
    main()
