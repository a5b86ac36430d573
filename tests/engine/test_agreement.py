"""Ranks that come to the same points, and saves that fail on one of them: two engines as two threads over one run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.training import Training, source_of
from unbroken.engine.agreement import Agreement
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.schedule import Every, Schedule
from unbroken.engine.settings import Settings
from unbroken.engine.world import World
from unbroken.errors import ConfigError, NotCapturable, SaveFailed, UnbrokenError
from unbroken.repo.rendezvous import Patience
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Snapshot
from unbroken.types import Fidelity

SECONDS = 120.0


class Group:
    """A process group of two threads: what rank 0 says goes to both, and each must ask equally often."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=SECONDS)
        self._word = False

    def agree(self, rank: int) -> Callable[[bool], bool]:
        def ask(wish: bool) -> bool:
            if rank == 0:
                self._word = wish
            self._barrier.wait()
            word = self._word
            self._barrier.wait()
            return word

        return ask


def together(work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]


def engine_of_rank(rank: int, root: Path, group: Group | None, *, every: int) -> CheckpointEngine:
    world = World(
        rank=rank,
        size=2,
        replicated=(),
        sync_timeout=SECONDS,
        start_timeout=SECONDS,
        agree=None if group is None else group.agree(rank),
    )
    settings = Settings(root=root, job="run", every=Every(steps=every), keep_last=50)
    return CheckpointEngine(source_of(Training(seed=rank)), settings, world=world, environment={})


def steps_of(root: Path) -> list[int]:
    return sorted(commit.step for commit in Repository.open(root, "run").commits())


@pytest.mark.parametrize("with_group", [True, False], ids=["asked", "by steps"])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_save_that_one_rank_cannot_begin_costs_that_save_alone(
    tmp_path: Path, failing: int, *, with_group: bool
) -> None:
    group = Group() if with_group else None
    told: dict[int, list[str]] = {0: [], 1: []}

    def work(rank: int) -> None:
        engine = engine_of_rank(rank, tmp_path, group, every=4)
        engine.resume()
        if rank == failing:
            capture = engine._source.capture

            def fails_once() -> object:
                engine._source.capture = capture  # type: ignore[method-assign]
                raise NotCapturable("The training holds a window.", place="training/window")

            engine._source.capture = fails_once  # type: ignore[method-assign, assignment]
        step = 0
        while step < 14:
            try:
                engine.step(step)
            except (SaveFailed, NotCapturable) as error:
                told[rank].append(str(error))
                continue  # as one does who goes on with the same iterator
            step += 1
            engine._writer.wait()  # as slow as a training
        assert not engine._writer.failed
        engine.save(14, reason="end of training", position="end")
        engine.close()

    together(work)
    saved = steps_of(tmp_path)
    assert {0, 12, 14} <= set(saved)
    assert 4 not in saved
    assert any("holds a window" in text for text in told[failing])
    # The other one hears the reason, and from whom; nobody is accused of having come to another step.
    other = told[1 - failing]
    assert len(other) == 1
    assert f"ank {failing}" in other[0]
    assert "holds a window" in other[0]
    assert not any("same steps" in text for text in (*told[0], *told[1]))


def test_a_repeated_call_asks_no_second_time() -> None:
    asked: list[bool] = []

    def agree(wish: bool) -> bool:
        asked.append(wish)
        return wish

    world = World(rank=0, size=2, agree=agree)
    agreement = Agreement(world, Schedule(Every(steps=5), lambda: 0.0))
    assert agreement.reason(5, 0, "due") == "due"
    agreement.raised(5)
    assert agreement.reason(5, 0, "the save before failed") == ""
    assert agreement.reason(6, 0, "the save before failed") == "the save before failed"
    assert asked == [True, True]


def test_without_a_group_a_wish_of_one_rank_counts_for_nothing() -> None:
    agreement = Agreement(World(rank=0, size=2), Schedule(Every(steps=5), lambda: 0.0))
    assert agreement.reason(3, 0, "requested by the script") == ""
    assert agreement.reason(5, 0, "") == "every 5 steps"
    assert agreement.reason(5, 0, "") == ""


def test_what_another_number_of_ranks_has_cost_is_not_forgotten(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        engine = engine_of_rank(rank, tmp_path, None, every=4)
        assert engine.resume().inexact == ()
        engine.save(4, reason="here", wait=True)
        engine.close()

    together(work)
    alone = Settings(root=tmp_path, job="run", every=Every(steps=4))
    cost = "the number of ranks was 2 and is 1: what rank 1 had of its own is left out"
    for step in (8, 12):
        engine = CheckpointEngine(source_of(Training(seed=0)), alone, environment={})
        report = engine.resume()
        assert report.step == step - 4
        assert report.inexact == (
            "the number of ranks was 2 and is 1: what rank 1 had of its own is left out",
        )
        assert {promise.fidelity for promise in report.promises.values()} == {Fidelity.APPROXIMATE}
        engine.save(step, reason="here", wait=True)
        engine.close()
    repository = Repository.open(tmp_path, "run")
    meta = repository.meta(repository.commits()[0])
    assert meta.inexact == [cost]
    assert {kept.fidelity for kept in meta.fidelity.values()} == {Fidelity.APPROXIMATE}


def test_a_component_that_is_to_be_the_same_and_is_not_there_is_named_on_both_ranks(tmp_path: Path) -> None:
    said: list[str] = []

    def work(rank: int) -> None:
        world = World(
            rank=rank, size=2, replicated={"policy_weigths"}, sync_timeout=SECONDS, start_timeout=SECONDS
        )
        settings = Settings(root=tmp_path, job="run", every=Every(steps=4))
        engine = CheckpointEngine(source_of(Training()), settings, world=world, environment={})
        with pytest.raises(UnbrokenError) as raised:
            engine.resume()
        said.append(str(raised.value))

    together(work)
    assert all("replicated names 'policy_weigths'" in text for text in said)
    with pytest.raises(ConfigError, match="Write 'replay_buffer'"):
        World(rank=0, size=2, replicated={"replay_buffer@rank1"})


class Clock:
    """That by which ranks wait for each other. Once the other one is `gone`, each look finds a second over."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self._ahead = 0.0

    def __call__(self) -> float:
        if self.gone.is_set():
            self._ahead += 1.0
        return time.monotonic() + self._ahead


def test_a_rank_that_is_gone_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a further save nor a word to the one who is gone is begun before the error ends the process."""
    begun: list[int] = []
    clock = Clock()
    monkeypatch.setattr(Patience, "for_store", lambda _store: Patience(clock=clock))

    def work(rank: int) -> None:
        world = World(rank=rank, size=2, replicated=(), sync_timeout=SECONDS, start_timeout=SECONDS)
        settings = Settings(root=tmp_path, job="run", every=Every(steps=4))
        engine = CheckpointEngine(source_of(Training(seed=rank)), settings, world=world, environment={})
        engine.resume()
        engine._writer.wait()
        if rank == 1:
            engine._release(note=False)  # gone without a word
            clock.gone.set()
            return
        assert clock.gone.wait(SECONDS)
        engine.save(4, reason="here")
        engine._writer.wait()
        capture = engine._source.capture

        def captured() -> Snapshot:
            begun.append(1)
            return capture()

        engine._source.capture = captured  # type: ignore[method-assign]
        with pytest.raises(SaveFailed, match=f"rank 1 said nothing for {SECONDS:g} seconds"):
            engine.save(8, reason="here")
        assert not engine._writer.busy
        engine._release(note=False)

    together(work)
    assert begun == []
