"""Every public name says what it is: what it does, which errors it raises, and in which unit a number is.

What a docstring says of shapes and of where a method comes from is pinned for those that have any.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from docsite import api
from tests.pages import ROOT
from unbroken import errors
from unbroken.engine.settings import Settings

NEEDS = {
    "unbroken.sb3": "stable_baselines3", "unbroken.rllib": "ray", "unbroken.tune": "ray", "unbroken.ray_train": "ray",
    "unbroken.lightning": "lightning", "unbroken.dcp": "torch", "unbroken.pretrained": "safetensors",
    "unbroken.neutral": "safetensors",
}  # fmt: skip
"""Faces that need a library."""
ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type)} - {"InternalError"}
SETTINGS = set(inspect.signature(Settings).parameters)
"""Their units stand at `Settings`."""
SECONDS = re.compile(r"(?:^|_)(?:seconds|timeout|patience|grace|window)$")


@dataclass(frozen=True)
class Public:
    """Something that a person can call, with all that is said of it."""

    name: str
    function: Callable[..., Any]
    said: str
    own: str
    """What its own docstring says."""


def names_of(face: str) -> dict[str, Any]:
    """Return the public names of a face that are defined in this package."""
    if face in NEEDS:
        pytest.importorskip(NEEDS[face])
    found = {
        name: getattr(importlib.import_module(home.rpartition(".")[0]), home.rpartition(".")[2])
        for name, home in api.gathered(face).items()
    }
    return {name: value for name, value in found.items() if inspect.isclass(value) or callable(value)}


def callables_of(name: str, value: Any) -> Iterator[Public]:
    """Return a public name and its public methods and properties, as far as they are ours."""
    about = inspect.getdoc(value) or ""
    if not inspect.isclass(value):
        yield Public(name, value, about, about)
        return
    made = vars(value).get("__init__") or vars(value).get("__post_init__")
    if inspect.isfunction(made):
        yield Public(f"{name}()", made, f"{about} {made.__doc__ or ''}", about)
    for member, kept in inspect.getmembers_static(value):
        owner = next((base for base in value.__mro__ if member in vars(base)), value)
        inner: Any = kept.fget if isinstance(kept, property) else getattr(kept, "__func__", kept)
        if (
            member.startswith("_")
            or not owner.__module__.startswith("unbroken")
            or not inspect.isfunction(inner)
        ):
            continue
        own = inspect.getdoc(getattr(value, member)) or inner.__doc__ or ""
        yield Public(f"{name}.{member}", inner, f"{own} {about}", own)


FACES = api.faces()


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_and_method_says_what_it_is(face: str) -> None:
    silent = [
        one.name
        for name, value in names_of(face).items()
        for one in callables_of(name, value)
        if not one.own and not one.name.rpartition(".")[2].startswith("test_")  # a test's name says it
    ]
    assert silent == []
    for name, value in names_of(face).items():
        assert value.__doc__, name


@pytest.mark.parametrize("face", FACES)
def test_every_error_that_a_public_function_raises_itself_is_in_its_docstring(face: str) -> None:
    untold = [
        f"{one.name}: {error}"
        for name, value in names_of(face).items()
        for one in callables_of(name, value)
        for error in sorted(raised_by(one.function))
        if error not in one.said
    ]
    assert untold == []


def raised_by(function: Callable[..., Any]) -> set[str]:
    """Return the errors of ours that the body of a function raises."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError):  # made by a decorator: there is no text
        return set()
    return {
        node.exc.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
    } & ERRORS


@pytest.mark.parametrize("face", FACES)
def test_what_is_a_time_says_that_it_is_in_seconds(face: str) -> None:
    untold = [
        f"{one.name}: {parameter}"
        for name, value in names_of(face).items()
        for one in callables_of(name, value)
        for parameter in inspect.signature(one.function).parameters
        if SECONDS.search(parameter) and parameter not in SETTINGS and "second" not in one.said.lower()
    ]
    assert untold == []


def test_settings_that_are_times_or_sizes_say_their_unit() -> None:
    text = (ROOT / "src/unbroken/engine/settings.py").read_text()
    for name, unit in {"grace": "Seconds", "sync_timeout": "Seconds", "staging": "Bytes"}.items():
        assert re.search(rf'^    {name}: .*\n    """{unit} ', text, flags=re.MULTILINE), name


def test_arrays_have_their_shapes_and_what_follows_a_paper_names_it() -> None:
    import unbroken
    from unbroken.buffers.prioritized import PrioritizedSample

    buffer = unbroken.PrioritizedReplayBuffer
    assert "ICLR 2016" in (buffer.__doc__ or "")
    assert "shape and dtype" in (buffer.__doc__ or "")
    assert "shape (n, …)" in (buffer.extend.__doc__ or "")
    source = inspect.getsource(PrioritizedSample)
    for field in PrioritizedSample._fields:
        assert re.search(rf'{field}: .*\n    """.*\(n,', source), field
