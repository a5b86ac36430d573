"""A run with parts that can only be pickled, whose key is gone: what a list of classes lets in."""

from __future__ import annotations

import platform
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.engine.warnings import PickledPartsWarning
from unbroken.errors import StateMismatch, Untrusted
from unbroken.repo.repository import Repository

# What the classes write down is for the tests, and need not come back.
pytestmark = pytest.mark.filterwarnings("ignore::unbroken.capture.uncovered.UncoveredWarning")


class Sealed:
    """Has no attributes that a walk could see: it can only be pickled."""

    __slots__ = ()
    made = list[object]()

    def __init__(self, held: object = None) -> None:
        if held is not None:
            self.made.append(held)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ("saved",)


class Other(Sealed):
    __slots__ = ()


SEALED = f"{__name__}.Sealed"
OTHER = f"{__name__}.Other"


def engine_of(root: Path, **settings: Any) -> tuple[CheckpointEngine, dict[str, object]]:
    state: dict[str, object] = {"one": Sealed(), "two": Other(), "x": 0}
    Sealed.made.clear()
    source = GraftSource({"state": state}, policy_of_loaded())
    return CheckpointEngine(source, Settings(root=root, job="run", **settings), environment={}), state


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path, None, None]:
    monkeypatch.setenv("UNBROKEN_KEY", "k" * 32)
    engine, state = engine_of(tmp_path)
    with pytest.warns(PickledPartsWarning):
        engine.resume()
    state["x"] = 5
    engine.save(5, reason="test", wait=True)
    engine.close()
    monkeypatch.setenv("UNBROKEN_KEY", "another key than that of the writer")
    yield tmp_path
    Sealed.made.clear()


def test_classes_that_are_all_named_are_loaded(root: Path) -> None:
    engine, state = engine_of(root, trust={SEALED, OTHER})
    assert engine.resume().step == 5
    assert state["x"] == 5
    assert Sealed.made == ["saved", "saved"]
    engine.close()


def test_a_class_that_is_not_named_is_told_with_its_place_and_nothing_is_written(root: Path) -> None:
    engine, state = engine_of(root, trust={SEALED})
    with pytest.raises(Untrusted) as raised:
        engine.resume()
    assert raised.value.places == ("state/two",)
    assert OTHER in raised.value.message
    assert state["x"] == 0


def test_a_list_that_is_empty_trusts_nothing(root: Path) -> None:
    engine, state = engine_of(root, trust=frozenset[str]())
    with pytest.raises(Untrusted) as raised:
        engine.resume()
    assert raised.value.places == ("state/one", "state/two")
    assert (state["x"], Sealed.made) == (0, [])


def test_what_is_signed_with_our_key_needs_no_list(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNBROKEN_KEY", "k" * 32)
    engine, state = engine_of(root, trust={SEALED})
    assert engine.resume().step == 5
    assert state["x"] == 5
    engine.close()


def former_maker() -> object:
    raise AssertionError("is not there any more when it is asked for")


def maker() -> object:
    return Moved()


class Moved:
    """Is pickled as a call of a function, as classes of libraries are."""

    __slots__ = ()
    by = staticmethod(maker)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).by, ()


def test_a_pickle_that_this_python_cannot_read_stops_the_start_with_the_one_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_KEY", "k" * 32)
    settings = Settings(root=tmp_path, job="run", worst_tier="fresh")

    def engine_with(state: dict[str, object]) -> CheckpointEngine:
        return CheckpointEngine(GraftSource({"state": state}, policy_of_loaded()), settings, environment={})

    with monkeypatch.context() as there:
        there.setattr(Moved, "by", former_maker)
        there.setattr(platform, "python_version", lambda: "3.99.1")
        state: dict[str, object] = {"one": Moved(), "x": 0}
        with engine_with(state) as engine:
            with pytest.warns(PickledPartsWarning):
                engine.resume()
            state["x"] = 5
            engine.save(5, reason="test", wait=True)
    monkeypatch.delattr(f"{__name__}.former_maker")
    state = {"one": Moved(), "x": 0}
    with pytest.raises(StateMismatch, match="nothing was touched") as raised:
        engine_with(state).resume()
    (told,) = raised.value.differences
    assert told.startswith("state/one: ")
    assert f"Moved was pickled by Python 3.99.1 and cannot be read by {platform.python_version()}: " in told
    assert "AttributeError" in told
    assert "former_maker" in told
    assert state["x"] == 0
    assert [commit.step for commit in Repository.open(tmp_path, "run").commits()] == [5, 0]
