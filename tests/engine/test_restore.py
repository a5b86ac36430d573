"""A restore touches nothing until everything fits, and checks what it did."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.training import Training, engine_of, source_of, train
from unbroken.capture.generators import GlobalGenerators, live_generators
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.capture.uncovered import UncoveredWarning
from unbroken.engine.changes import Change, Verdict
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.restore import restore
from unbroken.engine.settings import Settings
from unbroken.engine.warnings import PickledPartsWarning
from unbroken.engine.wording import Words
from unbroken.errors import CorruptObject, RestoreFailed, StateMismatch, Untrusted
from unbroken.format.meta import Meta
from unbroken.format.signature import key_name
from unbroken.repo.repository import Repository
from unbroken.state import graft as graft_module
from unbroken.state.graft import Difference, Graft
from unbroken.state.pickles import Trust
from unbroken.state.places import last_key
from unbroken.state.policy import Phase
from unbroken.state.snapshot import Snapshot
from unbroken.store.memory import MemoryStore
from unbroken.types import Step

pytestmark = pytest.mark.filterwarnings("ignore::unbroken.capture.uncovered.UncoveredWarning")
"""What `Odd` counts in its class is beside the state, as the engine says."""


def trained(steps: int = 5) -> Training:
    training = Training()
    for _ in range(steps):
        training.step()
    return training


class Meddling(GraftSource):
    """A source whose plan goes wrong in a way that the test chooses."""

    def __init__(self, training: Training, meddle: Callable[[Graft, Training], object]) -> None:
        super().__init__({"training": training}, source_of(training).policy)
        self.training = training
        self.meddle = meddle

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
        graft = super().plan(saved, keep=keep, trusted=trusted)
        self.meddle(graft, self.training)
        return graft


def lay(source: GraftSource, saved: Snapshot, **options: Any) -> None:
    skeleton = source.skeleton()
    restore(source, saved, birth=skeleton, now=skeleton, **options)


def test_the_state_comes_back_in_place() -> None:
    saved, training = source_of(trained()).capture(), Training()
    array, generator = training.net.weights, training.generator
    lay(source_of(training), saved)
    assert training.net.weights is array
    assert training.generator is generator
    assert training.digest() == trained().digest()


def test_an_error_in_the_plan_is_found_before_anything_is_touched() -> None:
    saved, training = source_of(trained()).capture(), Training()
    source = Meddling(training, lambda graft, _: graft.error("does not fit."))
    with pytest.raises(StateMismatch, match=r"does not fit\."):
        lay(source, saved)
    assert training.digest() == Training().digest()


def test_a_change_that_shows_no_difference_is_told_by_what_the_plan_ran_into() -> None:
    def source(dtype: torch.dtype) -> GraftSource:
        return GraftSource({"net": torch.nn.Linear(2, 2, dtype=dtype)}, policy_of_loaded())

    saved, birth, other = (
        source(torch.float32).capture(),
        source(torch.float32).skeleton(),
        source(torch.float64),
    )
    with pytest.raises(StateMismatch) as raised:
        restore(other, saved, birth=birth, now=other.skeleton())
    told = [line.partition(": ")[2] for line in raised.value.differences]
    assert told == [
        f"a Parameter float32{shape} was saved and the program has float64{shape} here."
        for shape in ([2, 2], [2])
    ]


def test_a_write_that_does_not_hold_is_seen_in_the_read_back() -> None:
    saved, training = source_of(trained()).capture(), Training()

    def spoil(graft: Graft, live: Training) -> None:
        graft.write(live.net.weights.__setitem__, (2, 2), 9.0)

    with pytest.raises(RestoreFailed, match="training/net/weights"):
        lay(Meddling(training, spoil), saved)


@pytest.mark.parametrize("error", [OSError("the simulator is gone"), CorruptObject("the simulator is gone")])
def test_a_write_that_raises_is_told_as_a_failed_restore(error: Exception) -> None:
    """Damage that shows only now must not send the recovery to an older checkpoint: live objects were touched."""
    saved, training = source_of(trained()).capture(), Training()

    def explode() -> None:
        raise error

    with pytest.raises(RestoreFailed, match="simulator is gone") as raised:
        lay(Meddling(training, lambda graft, _: graft.write(explode)), saved)
    assert raised.value.__cause__ is error


def test_what_wall_clocks_show_is_not_compared() -> None:
    saved, training = source_of(trained()).capture(), Training()
    source = Meddling(training, lambda graft, live: graft.write(setattr, live, "count", 77))
    with pytest.raises(RestoreFailed):
        lay(source, saved)
    source.volatile = lambda snapshot: frozenset({"training/count"})  # type: ignore[method-assign]
    lay(source, saved)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_source_has_the_last_word_on_a_change(verdict: Verdict) -> None:
    saved = source_of(trained()).capture()
    birth = source_of(Training()).skeleton()
    training = Training(rate=0.1)
    asked = list[Change]()

    def judge(change: Change) -> Verdict:
        asked.append(change)
        return verdict

    source = source_of(training, judge=judge)
    if verdict is Verdict.ERROR:
        with pytest.raises(StateMismatch, match=r"training/rate: 0\.5 -> 0\.1"):
            restore(source, saved, birth=birth, now=source.skeleton())
        assert training.count == 0
        restored = restore(source, saved, birth=birth, now=source.skeleton(), allowed={"rate"})
        assert "no longer exact" in restored.reports[0]
    else:
        restore(source, saved, birth=birth, now=source.skeleton())
    assert training.count == 5
    assert training.rate == (0.5 if verdict is Verdict.SAVED else 0.1)
    assert {change.place for change in asked} == {"training/rate"}


class Passable(GraftSource):
    """A source that knows a way past what it refuses."""

    def judge(self, change: Change) -> Verdict:
        return Verdict.ERROR

    def reword(self, place: str, words: Words) -> Words:
        return replace(words, subject=last_key(place), passable=place == "training/rate")


def test_a_refusal_names_allow_changed_only_if_that_lets_everything_pass() -> None:
    saved = source_of(trained()).capture()
    birth = source_of(Training()).skeleton()

    def hint(**changed: Any) -> str:
        training = Training(**changed)
        source = Passable({"training": training}, source_of(training).policy)
        with pytest.raises(StateMismatch) as raised:
            restore(source, saved, birth=birth, now=source.skeleton())
        return raised.value.hint

    assert 'allow_changed={"rate"}' in hint(rate=0.1)
    assert "allow_changed" not in hint(rate=0.1, width=8)


def test_an_array_of_another_shape_stays_as_built_if_that_is_allowed() -> None:
    saved = source_of(trained()).capture()
    birth = source_of(Training()).skeleton()
    training = Training(width=8)
    source = source_of(training)
    restored = restore(source, saved, birth=birth, now=source.skeleton(), allowed={"weights"})
    assert training.net.weights.shape == (8, 8)
    assert training.count == 5
    assert any("allowed" in report for report in restored.reports)


class Odd:
    """Has no attributes that a walk could see: it can only be pickled."""

    __slots__ = ()
    loaded = list[str]()

    def __reduce__(self) -> tuple[Any, ...]:
        return Odd.build, ("built",)

    @classmethod
    def build(cls, word: str) -> Odd:
        cls.loaded.append(word)
        return cls()


def odd_engine(root: Path, **settings: Any) -> tuple[CheckpointEngine, dict[str, object]]:
    state: dict[str, object] = {"odd": Odd(), "x": 0}
    source = GraftSource({"state": state}, policy_of_loaded())
    return CheckpointEngine(source, Settings(root=root, job="run", **settings), environment={}), state


@pytest.fixture
def pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a pickled part, signed with a key that is then gone, and an older checkpoint below it."""
    monkeypatch.setenv("UNBROKEN_KEY", "k" * 32)
    engine, state = odd_engine(tmp_path)
    with pytest.warns(PickledPartsWarning, match=r"state/odd.*UNBROKEN_KEY"):
        engine.resume()
    state["x"] = 5
    engine.save(5, reason="test", wait=True)
    engine.close()
    monkeypatch.delenv("UNBROKEN_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-key-here"))
    Odd.loaded.clear()
    return tmp_path


def test_a_pickled_part_without_a_valid_signature_stops_the_start_and_runs_nothing(pickled: Path) -> None:
    engine, state = odd_engine(pickled)
    with pytest.raises(Untrusted, match="state/odd") as raised:
        engine.resume()
    assert raised.value.places == ("state/odd",)
    assert "UNBROKEN_KEY" in raised.value.hint
    name = key_name(b"k" * 32)
    assert f"1 pickled parts that are signed with the key {name}, which is not held here" in str(raised.value)
    assert state["x"] == 0
    assert Odd.loaded == []


def test_the_key_or_the_word_of_the_user_lets_it_in(pickled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, state = odd_engine(pickled, trust=True)
    assert engine.resume().step == 5
    engine.close()
    assert state["x"] == 5
    assert Odd.loaded
    monkeypatch.setenv("UNBROKEN_KEY", "k" * 32)
    engine, state = odd_engine(pickled)
    assert engine.resume().step == 5
    engine.close()


def test_surroundings_that_differ_are_told_and_lower_the_fidelity(tmp_path: Path) -> None:
    class OnThreads(GraftSource):
        count = "1"

        def threads(self) -> dict[str, str]:
            return {"torch threads": self.count}

    def start() -> Any:
        training = Training()
        source = OnThreads({"training": training}, source_of(training).policy)
        engine = CheckpointEngine(source, Settings(root=tmp_path, job="run"), environment={})
        report = engine.resume()
        engine.close()
        return report

    assert start().warnings == ()
    assert start().warnings == ()
    OnThreads.count = "4"
    report = start()
    assert report.warnings == ("torch threads is 4 and was 1: the low bits may differ",)
    assert "approximate: all parts (the low bits may differ: torch threads is 4 and was 1)" in report.line
    assert "the low bits may differ" in report.text


def test_a_source_may_be_as_small_as_the_contract() -> None:
    """None of the optional abilities is needed."""

    class Least:
        def __init__(self, inner: GraftSource) -> None:
            self.capture, self.skeleton = inner.capture, inner.skeleton
            self.plan, self.judge = inner.plan, inner.judge

    saved, training = source_of(trained()).capture(), Training()
    source = Least(source_of(training))
    restore(source, saved, birth=None, now=source.skeleton())
    assert training.digest() == trained().digest()


def test_state_that_never_reached_a_save_is_nowhere(tmp_path: Path) -> None:
    training = Training()
    engine = engine_of(training, tmp_path)
    engine.resume()
    train(engine, training, start=0, until=15)
    engine.close()
    again = Training()
    engine = engine_of(again, tmp_path)
    engine.resume()
    engine.close()
    assert again.count == 10
    assert np.isfinite(again.net.weights).all()


def half(count: float) -> float:
    return count / 2


def third(count: float) -> float:
    return count / 3


@pytest.mark.parametrize("edited", [False, True], ids=["by training", "by a person"])
def test_a_function_that_training_has_put_there_cannot_come_back_and_the_run_is_not_exact_from_then_on(
    edited: bool, tmp_path: Path
) -> None:
    def start(own: Callable[[float], float], *, other: bool) -> Any:
        training: Any = Training()
        training.rule = own
        engine = engine_of(training, tmp_path)
        report = engine.resume()
        if other:
            training.rule = lambda count: count
            with pytest.warns(UncoveredWarning, match="training/rule"):
                engine.save(report.step + 10, reason="test", wait=True)
        engine.close()
        assert training.rule is own or other
        return report

    assert "· exact: all 2 parts" in start(half, other=True).line
    report = start(third if edited else half, other=False)
    assert "rule" in report.text
    assert "approximate: all parts" in report.line
    assert "approximate: all parts" in start(third if edited else half, other=False).line


class Lost(GraftSource):
    """Its plan says something about one place, and its writes spoil another one."""

    def __init__(self, training: Training, said: Difference, spoil: Callable[[Training], object]) -> None:
        super().__init__({"training": training}, source_of(training).policy)
        self.training = training
        self.said = said
        self.spoil = spoil

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
        graft = super().plan(saved, keep=keep, trusted=trusted)
        graft.differences.append(self.said)
        graft.write(self.spoil, self.training)
        return graft


def miscount(training: Training) -> None:
    training.count = 77


def add(training: Training) -> None:
    vars(training)["more"] = 1


def drop(training: Training) -> None:
    del training.rows


@pytest.mark.parametrize("level", ["lost", "fresh", "removed", "replaced"])
def test_what_is_lost_or_fresh_explains_nothing_that_differs_beside_it(level: str) -> None:
    saved, training = source_of(trained()).capture(), Training()
    with pytest.raises(RestoreFailed, match="training/count"):
        lay(Lost(training, Difference(level, "training", "is said of the owner."), miscount), saved)


@pytest.mark.parametrize(
    ("level", "spoil", "passes"),
    [
        ("kept", miscount, True),
        ("changed", miscount, True),
        ("stays", miscount, True),
        ("fresh", add, True),
        ("lost", add, False),
        ("lost", drop, True),
        ("fresh", drop, False),
    ],
)
def test_what_a_level_explains_at_its_place_and_below(
    level: str, spoil: Callable[[Training], object], passes: bool
) -> None:
    saved, training = source_of(trained()).capture(), Training()
    source = Lost(training, Difference(level, "training", "is said."), spoil)
    if passes:
        lay(source, saved)
    else:
        with pytest.raises(RestoreFailed):
            lay(source, saved)


def test_a_generator_that_is_lost_does_not_excuse_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = GraftSource({"generators": GlobalGenerators()}, policy_of_loaded())
    live = dict(live_generators())
    with monkeypatch.context() as more:
        more.setattr(
            "unbroken.capture.generators.live_generators", lambda **_: {**live, "cuda:7": random.Random(1)}
        )
        saved = generators.capture()

    class Spoiled(GraftSource):
        def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
            graft = super().plan(saved, keep=keep, trusted=trusted)
            graft.write(random.seed, 5, phase=Phase.GENERATORS)
            return graft

    lay(generators, saved)
    with pytest.raises(RestoreFailed, match="generators/value/python"):
        lay(Spoiled(generators.roots, generators.policy), saved)


class Moments:
    """An optimizer, as far as it matters here: it makes its state when it is first needed."""

    def __init__(self) -> None:
        self.state = dict[str, torch.Tensor]()


def stored(moments: Moments) -> Snapshot:
    """Save and load a state."""
    repository = Repository.over(MemoryStore(), "job", create=True)
    with repository.writer() as writer:
        commit = writer.write(source_over(moments).capture(), Meta(step=Step(1), reason="schedule"))
    return repository.load(commit)


def source_over(moments: Moments) -> GraftSource:
    return GraftSource({"moments": moments}, policy_of_loaded())


def test_what_was_loaded_becomes_live_and_is_freed_with_it() -> None:
    saved, live = Moments(), Moments()
    saved.state["first"] = torch.arange(5000.0)
    loaded = stored(saved)
    (memory,) = (part.content(0) for part in loaded.components.values() if part.blobs)
    lay(source_over(live), loaded)
    assert live.state["first"].data_ptr() == memory.ctypes.data
    assert torch.equal(live.state["first"], saved.state["first"])
    held = weakref.ref(memory)
    gc.disable()
    try:
        del loaded, memory, live
        assert held() is None
    finally:
        gc.enable()


def test_what_became_live_and_was_overwritten_is_seen_in_the_read_back() -> None:
    saved, live = Moments(), Moments()
    saved.state["first"] = torch.arange(5000.0)

    def spoil() -> None:
        live.state["first"].zero_()

    class Spoiling(GraftSource):
        def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
            graft = super().plan(saved, keep=keep, trusted=trusted)
            # It is compared with itself from now on; only its digest can tell.
            graft.write(spoil, phase=Phase.GENERATORS)
            return graft

    with pytest.raises(RestoreFailed, match="moments/state/first"):
        lay(Spoiling({"moments": live}, policy_of_loaded()), stored(saved))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("spoilt", [False, True])
def test_a_large_array_is_moved_into_the_one_that_is_there(
    order: Any, spoilt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graft_module, "ALONE", 1000)
    saved, training = trained(), Training()
    saved.net.weights = np.asarray(np.random.default_rng(0).random((2000, 300)), order=order)
    own = training.net.weights = np.zeros((2000, 300), order=order)
    repository = Repository.over(MemoryStore(), "job", create=True)
    with repository.writer() as writer:
        commit = writer.write(source_of(saved).capture(), Meta(step=Step(5), reason="schedule"))
    # It is compared with itself then: only the digests of what was saved can tell.
    after = (
        (lambda graft, live: graft.write(live.net.weights.__setitem__, (7, 7), 9.0)) if spoilt else nothing
    )
    if spoilt:
        with pytest.raises(RestoreFailed, match="training/net/weights"):
            lay(Meddling(training, after), repository.load(commit))
    else:
        lay(Meddling(training, after), repository.load(commit))
        assert np.array_equal(own, saved.net.weights)
    assert training.net.weights is own


def nothing(graft: Graft, training: Training) -> None:
    """Meddle with nothing."""
