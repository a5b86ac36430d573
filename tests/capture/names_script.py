"""What code does with names, under the Python that runs this: `python names_script.py PATH_OF_NAMES`.

Prints a line for each function that is understood otherwise than its entry here says. Needs nothing but the
standard library, so that any interpreter can run it.
"""

from __future__ import annotations

import importlib.util
import sys
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
    ("x = SEEN[k].append(1)", "SEEN", ["passed"]),
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


def main() -> None:
    spec = importlib.util.spec_from_file_location("names", sys.argv[1])
    assert spec is not None and spec.loader is not None
    names = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    print("\n".join([sys.version.split()[0], *wrong(names)]))


if __name__ == "__main__":
    main()
