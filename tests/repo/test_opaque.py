from __future__ import annotations

from unbroken.repo.opaque import opaque_places
from unbroken.state.nodes import Dict, List, Object, Opaque, Scope, Tuple, Value


def test_pickles_are_found_wherever_they_are() -> None:
    pickle = Opaque(c="builtins:object", data=b"x")
    roots: dict[str, Value] = {
        "model": Object(
            c="m:M", a={"plain": 1, "a/b": pickle}, s={"slot": List(v=[None, pickle])}, x={"extra": pickle}
        ),
        "env": Scope(p="0", roots={"inner": Dict(kv=[(pickle, Tuple(v=[pickle]))])}),
        "callback": pickle,
        "counter": 3,
    }
    assert sorted(opaque_places(roots)) == [
        "callback",
        "env/inner/#0.key",
        "env/inner/#0/0",
        "model/<extra>",
        "model/a~1b",
        "model/slot/1",
    ]


def test_depth_is_no_limit() -> None:
    value: Value = Opaque(c="builtins:object", data=b"x")
    for _ in range(50_000):
        value = List(v=[value])
    assert len(list(opaque_places({"deep": value}))) == 1
