"""Every error says what to do next."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from unbroken import errors
from unbroken.errors import UnbrokenError

SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))
CLASSES: dict[str, type[UnbrokenError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, UnbrokenError) and kind is not UnbrokenError
}


def made_in(source: Path) -> list[tuple[str, ast.Call]]:
    """Return every place at which one of our errors is made, by the name of its class."""
    found: list[tuple[str, ast.Call]] = []
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            if name in CLASSES:
                found.append((name, node))
    return found


def has_hint(call: ast.Call) -> bool:
    return any(
        keyword.arg == "hint" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        for keyword in call.keywords
    )


def test_every_error_is_made_with_a_hint_or_its_class_has_one() -> None:
    made = [(path, name, call) for path in SOURCES for name, call in made_in(path)]
    assert len(made) > 100, "they are found at all"
    without = [
        f"{path.name}:{call.lineno} {name}"
        for path, name, call in made
        if not CLASSES[name].default_hint and not has_hint(call)
    ]
    assert without == []


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_hint_is_one_sentence_and_gives_way_to_a_better_one(name: str) -> None:
    kind = CLASSES[name]
    error = kind("Something happened.")
    assert error.hint == kind.default_hint
    assert not error.hint or error.hint.endswith((".", "it"))
    assert str(error).endswith(error.hint)
    assert kind("Something happened.", hint="Do this.").hint == "Do this."


def test_whoever_must_stop_or_look_is_told_at_what() -> None:
    for kind in (errors.Fenced, errors.CommitConflict, errors.AmbiguousCommit):
        error = kind("x", key="epochs/0000000002.json", epoch=2)
        assert (error.key, error.epoch) == ("epochs/0000000002.json", 2)


def test_the_tree_names_every_class() -> None:
    assert errors.__doc__ is not None
    assert {name for name in CLASSES if name not in errors.__doc__} == set()
