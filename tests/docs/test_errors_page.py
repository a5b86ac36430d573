"""docs/reference/errors.md is about the errors and warnings that there are, in the words of the code."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from tests.pages import ROOT
from unbroken import errors
from unbroken.errors import UnbrokenError

TEXT = (ROOT / "docs/reference/errors.md").read_text()
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, UnbrokenError) and kind is not UnbrokenError
}
SECTIONS: dict[str, str] = {
    name: " ".join(body.split())
    for name, body in re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
}


def test_every_class_has_its_section_and_no_other_has_one() -> None:
    assert list(SECTIONS) and set(SECTIONS) == set(CLASSES)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_section_says_what_the_class_says_its_cause_and_its_cure(name: str) -> None:
    kind, said = CLASSES[name], SECTIONS[name]
    summary = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    assert said.startswith(summary)
    assert re.search(r"\*\*Cause\.\*\* [\w`].*\*\*Cure\.\*\* [\w`]", said)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_section_has_the_hint_of_the_class(name: str) -> None:
    hint, said = CLASSES[name].default_hint, SECTIONS[name]
    assert said.endswith(f"**Hint.** {hint}") if hint else "**Hint.**" not in said


def test_the_tree_is_that_of_the_code() -> None:
    drawn = re.findall(r"^(?:│   )?[├└]── (\w+)$", TEXT, flags=re.MULTILINE)
    told = re.findall(r"^(?:│   )?[├└]── (\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    assert drawn == told
    below = {name for name in drawn if f"│   ├── {name}\n" in TEXT or f"│   └── {name}\n" in TEXT}
    assert below == {name for name, kind in CLASSES.items() if kind.__mro__[1] is not UnbrokenError}


def test_whoever_catches_an_error_is_told_of_one_that_exists() -> None:
    (table,) = re.findall(r"^\| I want to \| catch \|\n(.*?)\n\n", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", table)) <= set(CLASSES)


def warnings_in_the_source() -> set[str]:
    """Return the names of all classes of warnings that the package has."""
    bases: dict[str, set[str]] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    found = {name for name, above in bases.items() if any(base.endswith("Warning") for base in above)}
    return {name for name in found if not name.startswith("_")}


def test_every_warning_has_its_row_with_cause_and_cure() -> None:
    rows = re.findall(r"^\| `(\w+Warning)` \| (.+?) \| (.+) \|$", TEXT, flags=re.MULTILINE)
    assert {name for name, _, _ in rows} == warnings_in_the_source()
    assert len(rows) == len({name for name, _, _ in rows})
