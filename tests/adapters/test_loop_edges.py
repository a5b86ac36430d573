"""Hand-written loops at their edges: loops inside loops, passes over data, what is named as lost, what a restore holds."""

from __future__ import annotations

import runpy
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unbroken
from unbroken.capture.tracked import Tracked
from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.lookup import slots_of as real_slots_of
from unbroken.state.snapshot import Snapshot
from unbroken.types import Fidelity


def test_a_loop_inside_a_loop_is_refused_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.vars.done = 0
    for _ in run.steps(3):
        with pytest.raises(ConfigError, match="still going on") as refused:
            next(iter(run.steps(2)))
        assert "divmod" in refused.value.hint
        run.vars.done += 1
    assert run.vars.done == 3
    newest = Repository.open(tmp_path / "run", "run").commits()[0]
    assert (newest.step, newest.segment, newest.position) == (3, 0, "end")


@pytest.mark.filterwarnings("ignore:Not in the checkpoint. seen:unbroken.UntrackedWarning")
def test_after_an_error_the_same_script_may_begin_the_loop_anew(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", every=2, quiet=True)
    position = np.zeros(2)
    run.track(position=position)
    seen: list[int] = []

    def train(fail_at: int) -> None:
        for step in run.steps(6):
            if step == fail_at:
                run.wait()
                raise KeyError
            position[:] += step
            seen.append(step)

    with pytest.raises(KeyError):
        train(3)
    with pytest.raises(ConfigError, match="by `break` or by an error"):
        train(-1)
    train(-1)
    assert seen == [0, 1, 2, 2, 3, 4, 5]
    assert position.tolist() == [15.0, 15.0]


def test_a_wish_to_save_comes_from_any_depth_and_is_refused_when_the_loop_is_over(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    for step in run.steps(6):
        for inner in range(3):
            if (step, inner) == (2, 1):
                run.save()
                run.save()
    assert [c.step for c in Repository.open(tmp_path / "run", "run").commits()] == [6, 3, 0]
    with pytest.raises(ConfigError, match="is over and its end is saved"):
        run.save()


def test_what_is_declared_as_scratch_is_neither_saved_nor_named(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    storage, kept = np.zeros(3), np.zeros(3)
    run.scratch(storage)
    run.track(kept=kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error", unbroken.UntrackedWarning)
        for step in run.steps(2):
            storage[:] = step
            kept += storage
    assert kept.tolist() == [1.0, 1.0, 1.0]
    places = " ".join(root for c in final_state(tmp_path / "run").components.values() for root in c.roots)
    assert "kept" in places
    assert "storage" not in places


def test_code_that_changes_what_is_scratch_is_not_named_and_its_component_stays_exact(tmp_path: Path) -> None:
    storage: list[Any] = []
    other: list[Any] = []

    class Acts:
        def act(self) -> None:
            storage.append(1)

    class ActsOnAnother:
        def act(self) -> None:
            other.append(1)

    for agent, named in ((Acts(), False), (ActsOnAnother(), True)):
        run = unbroken.Run(tmp_path, job=type(agent).__name__, quiet=True)
        run.track(agent=agent)
        run.scratch(storage)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in run.steps(2):
                storage.clear()
                agent.act()
        assert any(issubclass(one.category, unbroken.UncoveredWarning) for one in caught) == named
        repository = Repository.open(tmp_path, type(agent).__name__)
        told = {promise.fidelity for promise in repository.meta(repository.commits()[0]).fidelity.values()}
        assert (Fidelity.NOT_CAPTURED in told) == named


def test_scratch_holds_for_the_objects_themselves_and_not_for_what_they_lead_to(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    storage, inside = np.zeros(3), np.zeros(3)
    view = storage[1:]  # the same memory
    holder = [inside]
    run.scratch(storage, holder)
    steps = run.steps(1)
    with pytest.warns(unbroken.UntrackedWarning, match="Not in the checkpoint: inside\\."):
        next(steps)
    view[:] = inside[1:] = 1.0
    run.close()


def test_scratch_is_let_go_when_the_loop_has_begun(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    held = [np.zeros(3)]
    alive = weakref.ref(held[0])
    run.scratch(*held, held)
    for _ in run.steps(1):
        held.clear()
        assert alive() is None


def test_what_is_saved_cannot_be_scratch_and_scratch_comes_before_the_loop(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    kept, storage = np.zeros(3), np.zeros(3)
    run.track(kept=kept)
    with pytest.raises(ConfigError, match="kept is to be saved, and is named as scratch too"):
        run.scratch(storage, kept)
    run.track(storage=storage)  # nothing of the refused call has stayed
    other = np.zeros(3)
    run.scratch(other)
    with pytest.raises(ConfigError, match="other is to be saved, and is named as scratch too"):
        run.track(other=other)
    with pytest.raises(ConfigError, match="A NoneType cannot be told from others"):
        run.scratch(None)
    run.vars.obs = other
    with pytest.raises(ConfigError, match=r"vars\.obs is to be saved, and is named as scratch too"):
        next(iter(run.steps(2)))
    run.vars.obs = np.zeros(3)
    for _ in run.steps(2):
        with pytest.raises(ConfigError, match="before the loop"):
            run.scratch(np.zeros(3))


def test_a_pass_over_data_and_a_loader_with_a_generator_of_its_own_are_named(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    data: Any = torch.utils.data
    run = unbroken.Run(tmp_path / "run", quiet=True)
    known = torch.Generator()
    run.track(known=known)
    samples = data.TensorDataset(torch.zeros(4))
    plain, tracked = data.DataLoader(samples), data.DataLoader(samples, shuffle=True, generator=known)
    forgotten = data.DataLoader(samples, shuffle=True, generator=torch.Generator())
    batches = iter(plain)
    with pytest.warns(unbroken.UntrackedWarning) as told:
        for _ in run.steps(1):
            pass
    assert [len(loader) for loader in (plain, tracked, forgotten, batches)] == [4, 4, 4, 4]
    (warning,) = told
    assert "Not in the checkpoint: batches, forgotten." in str(warning.message)


def test_a_loader_whose_workers_outlast_an_epoch_is_named(tmp_path: Path) -> None:
    data: Any = pytest.importorskip("torch.utils.data")
    run = unbroken.Run(tmp_path / "run", quiet=True)
    lasting = data.DataLoader([1, 2], num_workers=1, persistent_workers=True)
    ending = data.DataLoader([1, 2], num_workers=1)
    with pytest.warns(unbroken.UntrackedWarning) as told:
        for _ in run.steps(1):
            pass
    assert (len(lasting), len(ending)) == (2, 2)
    (warning,) = told
    assert "Not in the checkpoint: the worker processes of lasting." in str(warning.message)


SEEN: list[float] = []


def remember(value: float) -> int:
    SEEN.append(value)
    return len(SEEN)


counted = 0


def count() -> None:
    global counted
    counted += 1


def look() -> int:
    return len(SEEN)


def test_what_the_functions_that_a_loop_calls_change_is_named(tmp_path: Path) -> None:
    rate = 1.0

    def anneal() -> float:
        nonlocal rate
        rate *= 0.9
        return remember(rate) * rate

    run = unbroken.Run(tmp_path / "run", quiet=True)

    def loop() -> None:
        for _ in run.steps(1):
            anneal()

    with pytest.warns(unbroken.UncoveredWarning) as told:
        loop()
    (warning,) = told
    assert "anneal: assigns rate, a variable of test_what_the_functions" in str(warning.message)
    assert f"anneal: changes SEEN, a global of {__name__}" in str(warning.message)


@pytest.mark.filterwarnings("error::unbroken.UncoveredWarning")
def test_what_they_change_and_is_tracked_or_only_read_is_not_named(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.track(seen=SEEN)
    for step in run.steps(2):
        remember(step + look())


AROUND_A_LOOP = """
import sys, unbroken

MADE, TOLD, PLOTTED = [], [], []

def make():
    MADE.append(1)

def tell():
    TOLD.append(1)

def plot():
    PLOTTED.append(1)

def never():
    PLOTTED.clear()

{head}
    make()
    run = unbroken.Run(sys.argv[1], quiet=True)
    run.vars.n = 0
    for step in run.steps(2):
        run.vars.n += 1
        tell()
    plot()
{foot}
"""


@pytest.mark.parametrize("place", ["a function", "the module"])
def test_of_what_is_called_around_a_loop_only_what_is_called_inside_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, foot = ("def main():", "main()") if place == "a function" else ("if True:", "")
    script = tmp_path / "script.py"
    script.write_text(AROUND_A_LOOP.format(head=head, foot=foot))
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path / "run")])
    with pytest.warns(unbroken.UncoveredWarning) as told:
        runpy.run_path(str(script), run_name="__main__")
    (warning,) = told
    told_of = str(warning.message).partition(". A resumed run")[0]
    assert told_of == "Not in the checkpoint: tell: changes TOLD, a global of __main__"


@pytest.mark.filterwarnings("error::unbroken.UncoveredWarning")
def test_where_the_body_of_a_loop_cannot_be_told_no_function_is_named(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    steps = run.steps(2)
    while next(steps, None) is not None:
        remember(1.0)


def test_what_may_stand_behind_the_objects_that_are_looked_at_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracked is what a function changes: found, it is not named, and neither where the search ends before it."""
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.track(many=[[[i] for i in range(50)], [[SEEN]]])
    monkeypatch.setattr("unbroken.capture.untracked.MOST_OBJECTS", 30)

    def loop() -> None:
        for _ in run.steps(1):
            remember(1.0)
            count()

    with pytest.warns(unbroken.UncoveredWarning) as told:
        loop()
    (warning,) = told
    told_of = str(warning.message).partition(". A resumed run")[0]
    assert told_of == f"Not in the checkpoint: count: assigns counted, a global of {__name__}"


def test_what_is_tracked_is_looked_through_once_and_a_class_asked_once_for_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[type] = []

    def slots_of(cls: type) -> tuple[str, ...]:
        asked.append(cls)
        return real_slots_of(cls)

    monkeypatch.setattr("unbroken.capture.untracked.slots_of", slots_of)
    run = unbroken.Run(tmp_path / "run", quiet=True)
    # What a variable holds is looked for among it, and what the function changes, too.
    rng = np.random.default_rng(0)
    run.track(rng=rng, seen=SEEN, many=[Slotted(rng) for _ in range(3)])
    for _ in run.steps(1):
        remember(rng.random())
    assert asked.count(Slotted) == 1
    assert len(asked) == len(set(asked))


class Slotted:
    __slots__ = ("rng",)

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng


@pytest.mark.filterwarnings("error::unbroken.UntrackedWarning")
def test_what_stands_in_a_slot_of_a_tracked_object_is_tracked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.track(slotted=Slotted(rng))
    for _ in run.steps(2):
        rng.random()


def test_the_seed_of_each_environment_stands_in_the_checkpoint_by_its_index(tmp_path: Path) -> None:
    gym: Any = pytest.importorskip("gymnasium")
    vector, single = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"), gym.make("CartPole-v1")
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.track(vector=gym.wrappers.vector.RecordEpisodeStatistics(vector), other=single)
    vector.reset(seed=7)
    single.reset(seed=30)
    for _ in run.steps(1):
        pass
    repository = Repository.open(tmp_path / "run", "run")
    assert repository.meta(repository.commits()[0]).env_seeds == [7, 8, 30]


def test_a_pass_in_worker_processes_is_declared(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    data: Any = torch.utils.data
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.vars.batches = iter(data.DataLoader(data.TensorDataset(torch.zeros(4)), num_workers=1))
    for _ in run.steps(1):
        pass
    assert run.report is not None
    assert "num_workers=0 is exact" in run.report.text


def final_state(root: Path) -> Snapshot:
    repository = Repository.open(root, root.name)
    return repository.load(repository.commits()[0])


def test_what_was_restored_holds_nothing_of_the_checkpoint(tmp_path: Path) -> None:
    """A7, A10: restored values stay tied to the checkpoint. Right: training on leaves it as it is, restored again it
    gives the same, and it may be gone meanwhile."""
    torch: Any = pytest.importorskip("torch")

    def made() -> tuple[Any, Any, Tracked]:
        torch.manual_seed(0)
        net = torch.nn.Linear(300, 300)
        optimizer = torch.optim.Adam(net.parameters())
        tracked = Tracked()
        tracked.add({"policy": net, "optimizer": optimizer, "table": np.zeros(50_000)})
        tracked.vars.pool = []
        tracked.vars.seen = None
        return net, optimizer, tracked

    def train(net: Any, optimizer: Any, tracked: Tracked) -> None:
        net(torch.ones(2, 300)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        table: Any = tracked.objects["table"]
        table += 1.0
        tracked.vars.pool.append(net.weight.detach().clone())
        for old in tracked.vars.pool:
            old.add_(1.0)
        tracked.vars.seen = np.zeros(50_000) if tracked.vars.seen is None else tracked.vars.seen
        tracked.vars.seen += 1.0

    net, optimizer, tracked = made()
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.track(policy=net, optimizer=optimizer, table=tracked.objects["table"])
    run.vars.pool, run.vars.seen = tracked.vars.pool, None
    for _ in run.steps(1):
        train(net, optimizer, tracked)
        run.vars.seen = tracked.vars.seen
    saved, held = final_state(tmp_path / "run"), final_state(tmp_path / "run")
    others = [made(), made()]
    for number, other in enumerate(others):
        other[2].source().plan(saved).apply()
        assert compare(held, other[2].source().capture()) == [], f"restore {number}"
        train(*other)
        train(*other)
        assert compare(held, saved) == []
    assert compare(*(other[2].source().capture() for other in others)) == []
