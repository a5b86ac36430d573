"""Every error says what to do next."""

from __future__ import annotations

import ast
import re
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


def test_what_is_to_be_installed_is_named_in_one_place_and_needs_no_index_that_has_this_package() -> None:
    said = {path.name for path in SOURCES if "pip install" in path.read_text(encoding="utf-8")}
    assert said == {"errors.py", "report.py"}, "a message says it with errors.installing"
    assert [path.name for path in SOURCES if "unbroken[" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_hint_is_one_sentence_and_gives_way_to_a_better_one(name: str) -> None:
    kind = CLASSES[name]
    error = kind("Something happened.")
    assert error.hint == kind.default_hint
    assert not error.hint or error.hint.endswith((".", "it"))
    assert str(error).endswith(error.hint)
    assert kind("Something happened.", hint="Do this.").hint == "Do this."


NOT_KNOWN = {
    "Write: unbroken gym export RUN --out FILE, or: unbroken gym export --check FILE",
    "Name a directory that `unbroken export RUN --to neutral DIR` has written.",
}
"""Hints where no run was named, or none is meant."""


def spoken(source: Path) -> list[tuple[int, str]]:
    """Return every text in a source that a message may be made of: none that explains the code or an option."""
    silent: set[int] = set()
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg == "help"):
            silent |= {id(part) for part in ast.walk(node) if not isinstance(node.value, ast.Call)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent
    ]


def test_a_command_in_a_message_names_what_it_is_about_and_no_placeholder() -> None:
    said = [(path, line, text) for path in SOURCES for line, text in spoken(path)]
    commands = [one for one in said if re.search(r"unbroken [a-z]", one[2])]
    assert len(commands) > 20, "they are found at all"
    assert [
        f"{path.name}:{line} {text}"
        for path, line, text in commands
        if re.search(r"\b(RUN|ROOT|ADDRESS|STEP)\b", text) and text not in NOT_KNOWN
    ] == []


def test_whoever_must_stop_or_look_is_told_at_what() -> None:
    for kind in (errors.Fenced, errors.CommitConflict, errors.AmbiguousCommit):
        error = kind("x", key="epochs/0000000002.json", epoch=2)
        assert (error.key, error.epoch) == ("epochs/0000000002.json", 2)


def test_the_tree_names_every_class() -> None:
    assert errors.__doc__ is not None
    assert {name for name in CLASSES if name not in errors.__doc__} == set()
