"""Every public name says what it is: what it does, which errors it raises, and in which unit a number is.

The source is read, so that no framework has to be imported, and a face whose library is missing is looked at as well. What a
docstring says of shapes and of where a method comes from is pinned for those that have any.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from docsite import api
from tests.docs import sources
from tests.docs.sources import Public, public
from tests.pages import ROOT
from unbroken import errors
from unbroken.engine.settings import Settings

ERRORS: dict[str, type[BaseException]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.UnbrokenError) and name != "InternalError"
}
SETTINGS = set(inspect.signature(Settings).parameters)
"""Their units stand at `Settings`."""
SECONDS = re.compile(r"(?:^|_)(?:seconds|timeout|patience|grace|window)$")
FACES = api.faces()


def untold(one: Public) -> list[str]:
    """Return the errors of ours that it raises and that the docstring does not say it raises, it or a base of it."""
    _, said, raises = one.own.partition("Raise")
    return [
        name
        for name in sorted(one.raised & ERRORS.keys())
        if not said
        or not any(
            re.search(rf"\b{kind.__name__}\b", raises) for kind in ERRORS[name].__mro__ if kind is not object
        )
    ]


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_and_method_says_what_it_is(face: str) -> None:
    assert [name for name, said, _ in public(face) if not said] == []
    silent = [
        one.name
        for _, _, all_of_it in public(face)
        for one in all_of_it
        if not one.own.strip()
        and not one.name.rpartition(".")[2].startswith("test_")  # a test's name says it
    ]
    assert silent == []


@pytest.mark.parametrize("face", FACES)
def test_every_error_that_is_raised_is_said_to_be_raised(face: str) -> None:
    found = {one.name: untold(one) for _, _, all_of_it in public(face) for one in all_of_it}
    assert {name: missing for name, missing in found.items() if missing} == {}


@pytest.mark.parametrize("face", FACES)
def test_what_is_a_time_says_that_it_is_in_seconds(face: str) -> None:
    found = [
        f"{one.name}: {parameter}"
        for _, _, all_of_it in public(face)
        for one in all_of_it
        for parameter, below in one.parameters.items()
        if SECONDS.search(parameter)
        and parameter not in SETTINGS
        and "second" not in f"{one.own} {one.about} {below}".lower()
    ]
    assert found == []


SHOWN = '''
class Box:
    """A box. ConfigError is what a wrong size leads to."""

    def open(self, timeout: float) -> None:
        """Open it."""
        self._pry()

    def close(self) -> None:
        """Close it.

        Raises:
            CorruptObject: it is broken.
        """
        if self.size:
            raise ConfigError("no")
        raise CorruptObject("no")

    def _pry(self) -> None:
        raise ConfigError("no")
'''


def test_an_error_that_only_the_class_names_or_a_private_method_raises_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "unbroken"
    package.mkdir()
    (package / "boxes.py").write_text(SHOWN)
    (package / "box.py").write_text('from unbroken.boxes import Box as Box\n\n__all__ = ["Box"]\n')
    monkeypatch.setattr(api, "SOURCE", package)
    sources.module.cache_clear()
    ((name, said, (opening, closing)),) = public("unbroken.box")
    sources.module.cache_clear()
    assert (name, said.partition(".")[0]) == ("Box", "A box")
    assert (opening.name, closing.name) == ("Box.open", "Box.close")
    assert untold(opening) == ["ConfigError"]
    assert untold(closing) == ["ConfigError"]
    assert list(opening.parameters) == ["self", "timeout"]


def test_the_classes_and_functions_of_every_face_are_found() -> None:
    for face in FACES:
        found = {name for name, _, _ in public(face)}
        written = api.gathered(face)
        capitals = {name for name in written if not name.isupper() and name not in VALUES}
        assert capitals <= found, face


VALUES = {"__version__"}
"""Public names that stand for a value."""


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
