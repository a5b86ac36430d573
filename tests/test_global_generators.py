"""The generators of a process belong to its training: nothing here draws from them, on no path however rare.

Read from the source without running it, since the rare paths (a store that fails in passing) are those that no run shows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "unbroken"
MODULES = {"random", "np.random", "numpy.random", "torch", "th"}
DRAWS = {
    "betavariate", "bytes", "choice", "choices", "exponential", "gauss", "getrandbits", "normal", "permutation", "rand",
    "randbytes", "randint", "randn", "random", "random_sample", "randperm", "randrange", "sample", "seed", "shuffle",
    "standard_normal", "manual_seed", "triangular", "uniform",
}  # fmt: skip


def draws(tree: ast.AST) -> Iterator[str]:
    from_a_given_one = {
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(keyword.arg == "generator" for keyword in node.keywords)
    }
    for node in ast.walk(tree):
        if node in from_a_given_one:
            continue
        if isinstance(node, ast.Attribute) and node.attr in DRAWS and ast.unparse(node.value) in MODULES:
            yield f"{ast.unparse(node)} in line {node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module in {"random", "numpy.random"}:
            for name in node.names:
                if name.name in DRAWS:
                    yield f"from {node.module} import {name.name} in line {node.lineno}"


def test_the_search_finds_what_draws() -> None:
    text = """draw = random.random
np.random.shuffle(x)
random.SystemRandom().random()
torch.rand(3)
torch.randperm(3, generator=mine)
from random import choice
"""
    assert sorted(draws(ast.parse(text))) == [
        "from random import choice in line 6", "np.random.shuffle in line 2", "random.random in line 1",
        "torch.rand in line 4",
    ]  # fmt: skip


def test_nothing_draws_from_the_generators_of_the_process() -> None:
    found = {
        str(path.relative_to(SOURCE)): named
        for path in sorted(SOURCE.rglob("*.py"))
        if (named := list(draws(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}
