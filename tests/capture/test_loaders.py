"""A save leaves a pass over a data loader as it is, and a restored pass goes on as the program's own would have.

Every sampler of PyTorch's is left at each of its batches, with epochs that are gone through and left early. The data
set draws from the generator of the sampler, so that it shows at which moment anything is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Generator as Made
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.loaders import PASSES
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.errors import StateMismatch
from unbroken.state.diff import compare
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Snapshot
from unbroken.state.staging import own

Travel = Callable[[Snapshot], Snapshot]
Generator = torch.Generator
SAMPLES = 7


@cache
def _policy() -> Policy:
    return policy_of_loaded(PASSES)


class Noisy(Dataset[Any]):
    """Samples with noise from a generator that the sampler draws from, too."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: Any) -> tuple[str, float]:
        return str(key), torch.rand((), generator=self.generator).item()


class AtOnce(Sampler[int]):
    """An order of a person's own, which is drawn as the epoch begins."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES, generator=self.generator).tolist())


class OnTheWay(Sampler[int]):
    """An order of a person's own, which is made up while it goes along."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        left = list(range(SAMPLES))
        while left:
            yield left.pop(int(torch.randint(len(left), (1,), generator=self.generator)))


def shuffled(g: Generator, **options: Any) -> dict[str, Any]:
    return {"sampler": RandomSampler(range(SAMPLES), generator=g, **options), "batch_size": 2}


KINDS: dict[str, Callable[[Generator], dict[str, Any]]] = {
    "shuffle": lambda g: {"shuffle": True, "generator": g, "batch_size": 2},
    "shuffle, divisible": lambda g: {"shuffle": True, "generator": g, "batch_size": 7},
    "shuffle, drop_last": lambda g: {"shuffle": True, "generator": g, "batch_size": 2, "drop_last": True},
    "shuffle, one by one": lambda g: {"shuffle": True, "generator": g, "batch_size": None},
    "shuffle, generator of its own": lambda g: {"shuffle": True, "batch_size": 2},
    "laps": lambda g: shuffled(g, num_samples=2 * SAMPLES + 3),
    "laps, divisible": lambda g: shuffled(g, num_samples=2 * SAMPLES),
    "laps, generator of its own": lambda g: {
        "sampler": RandomSampler(range(SAMPLES), num_samples=2 * SAMPLES + 3), "batch_size": 2,
    },
    "few": lambda g: shuffled(g, num_samples=3),
    "replacement": lambda g: {**shuffled(g, replacement=True, num_samples=70), "batch_size": 10},
    "replacement, generator of its own": lambda g: {
        "sampler": RandomSampler(range(SAMPLES), replacement=True, num_samples=70), "batch_size": 10,
    },
    "subset": lambda g: {"sampler": SubsetRandomSampler([1, 3, 4, 6, 2], generator=g), "batch_size": 2},
    "subset of names": lambda g: {"sampler": SubsetRandomSampler(list("abcde"), generator=g), "batch_size": 2},  # type: ignore[arg-type]
    "weighted": lambda g: {"sampler": WeightedRandomSampler([1.0, 2.0, 5.0], 7, generator=g), "batch_size": 2},
    "weighted, one by one": lambda g: {
        "sampler": WeightedRandomSampler([1.0, 2.0, 5.0], 5, generator=g), "batch_size": None,
    },
    "in turn": lambda g: {"batch_size": 2, "generator": g},
    "in turn, one by one": lambda g: {"batch_size": None, "generator": g},
    "batch sampler": lambda g: {"batch_sampler": BatchSampler(RandomSampler(range(SAMPLES), generator=g), 3, True)},
    "batches in a list": lambda g: {"batch_sampler": [[1, 2], [3], [0, 4]], "generator": g},
    "keys in a list": lambda g: {"sampler": ["a", (1, 2), None, "d"], "batch_size": 3, "generator": g},
    "array": lambda g: {"sampler": np.arange(6)[::-1].copy(), "batch_size": 2, "generator": g},
    "distributed": lambda g: {
        "sampler": DistributedSampler(range(9), num_replicas=2, rank=1, seed=3),  # type: ignore[arg-type]
        "batch_size": 2,
        "generator": g,
    },
    "distributed, one by one": lambda g: {
        "sampler": DistributedSampler(range(9), num_replicas=2, rank=1, seed=3),  # type: ignore[arg-type]
        "batch_size": None,
        "generator": g,
    },
}  # fmt: skip


MOVES = "nnn|" + "n" * 11 + "|n|nnnn"
"""The next batch, or a new epoch: one is left early, one is gone through (and asked for more), one is left early."""


class Own:
    """What a script carries along."""

    def __init__(self, it: Any) -> None:
        self.it = it


class World:
    """A script that has built its loader and stands in a pass over it."""

    def __init__(self, kind: str, *, seed: int, used: int = 0) -> None:
        torch.manual_seed(seed)
        self.generator = Generator().manual_seed(seed)
        self.loader = DataLoader(Noisy(self.generator), collate_fn=list, **KINDS[kind](self.generator))
        self.own = Own(iter(self.loader))
        for _ in range(used):
            next(self.own.it, None)
        roots = {
            "generator": self.generator, "loader": self.loader, "own": self.own, "globals": GlobalGenerators(),
        }  # fmt: skip
        self.source = GraftSource(roots, _policy())
        self._drawn = torch.get_rng_state()

    @contextmanager
    def active(self) -> Made[None]:
        """PyTorch's global generator is that of this world."""
        torch.set_rng_state(self._drawn)
        try:
            yield
        finally:
            self._drawn = torch.get_rng_state()

    def move(self, move: str) -> Any:
        """Make one move, and return what it has given and what was drawn by then."""
        with self.active():
            if move == "|":
                self.own.it = iter(self.loader)
            batch = next(self.own.it, "the end") if move == "n" else move
        return batch, self.generator.get_state().tolist(), self._drawn.tolist()

    def capture(self) -> Snapshot:
        with self.active():
            return own(self.source.capture())

    def look(self, saved: Snapshot) -> None:
        """Ask all that only asks."""
        with self.active():
            self.source.skeleton()
            self.source.plan(saved)

    def restore(self, saved: Snapshot) -> None:
        with self.active():
            self.source.plan(saved).apply()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_saves_at_each_batch_is_the_run_that_never_does(kind: str) -> None:
    never, always = World(kind, seed=1), World(kind, seed=1)
    for move in MOVES:
        always.look(always.capture())
        assert always.move(move) == never.move(move)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_at_each_batch_is_the_run_that_never_was(kind: str, travel: Travel) -> None:
    never, killed = World(kind, seed=1), World(kind, seed=1)
    for number, move in enumerate(MOVES):
        saved = killed.capture()
        assert not [note for note in saved.notes if note.kind in ("approximate", "not captured")]
        assert compare(saved, never.capture()) == []
        killed = World(kind, seed=number + 2, used=(0, 2, 20)[number % 3])  # a start may stand anywhere
        killed.restore(travel(saved))
        assert killed.move(move) == never.move(move)


@pytest.mark.parametrize("kind", KINDS)
def test_who_only_asks_leaves_the_very_iterator_as_it_is(kind: str) -> None:
    world = World(kind, seed=1, used=2)
    held = vars(world.own.it)["_sampler_iter"]
    state = getattr(held, "gi_frame", None) and held.gi_frame.f_lasti
    world.look(world.capture())
    policy = world.source.policy
    captor = next(found for rule in policy.captors if (found := rule(world.own.it)) is not None)
    captor.attributes(world.own.it)
    assert vars(world.own.it)["_sampler_iter"] is held
    assert (getattr(held, "gi_frame", None) and held.gi_frame.f_lasti) == state


@pytest.mark.filterwarnings("ignore::unbroken.capture.uncovered.UncoveredWarning")
@pytest.mark.parametrize("used", [0, 1, 3, 20])
def test_an_order_that_is_made_up_on_the_way_is_declared_and_left_alone(used: int) -> None:
    KINDS["own"] = lambda g: {"sampler": OnTheWay(g), "batch_size": 2}
    try:
        never, always = World("own", seed=1, used=used), World("own", seed=1, used=used)
    finally:
        del KINDS["own"]
    for move in MOVES:
        saved = always.capture()
        ended = vars(always.own.it)["_sampler_iter"].gi_frame is None
        assert always.move(move) == never.move(move)
        told = [note.detail for note in saved.notes if note.kind == "approximate"]
        assert ended or any("OnTheWay" in detail for detail in told)


def test_an_order_of_a_person_s_own_that_is_drawn_at_once_is_exact_within_the_epoch(travel: Travel) -> None:
    KINDS["own"] = lambda g: {"sampler": AtOnce(g), "batch_size": 2}
    try:
        never, killed = World("own", seed=1, used=1), World("own", seed=1, used=1)
        twin = World("own", seed=2)
    finally:
        del KINDS["own"]
    saved = killed.capture()
    assert not [note for note in saved.notes if note.kind == "approximate"]
    twin.restore(travel(saved))
    assert [twin.move(move) for move in MOVES] == [never.move(move) for move in MOVES]


class Stream(IterableDataset[int]):
    """Gives its samples one after the other, without any order of a sampler."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.at += 1
        return self.at


@pytest.mark.parametrize("size", [2, None])
def test_a_stream_goes_on_where_its_data_set_is(size: int | None, travel: Travel) -> None:
    def build(used: int) -> tuple[Any, GraftSource]:
        held = Own(iter(DataLoader(Stream(), batch_size=size)))
        for _ in range(used):
            next(held.it)
        return held, GraftSource({"own": held}, _policy())

    held, source = build(3)
    saved = own(source.capture())
    assert not [note for note in saved.notes if note.kind in ("approximate", "not captured")]
    twin, its = build(0)
    its.plan(travel(saved)).apply()
    assert [str(next(twin.it)) for _ in range(3)] == [str(next(held.it)) for _ in range(3)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("<at>", -2),
        ("<at>", "1"),
        ("<laps>", -2),
        ("<n>", None),
        ("<size>", True),
        ("<numbers>", 5),
        ("<stands>", ""),
    ],
)
def test_a_document_of_nonsense_is_refused_and_changes_nothing(
    field: str, value: Any, travel: Travel
) -> None:
    saved = travel(World("shuffle", seed=1, used=1).capture())
    twin, other = World("shuffle", seed=2), World("shuffle", seed=2)
    parts: Any = saved.components.values()
    holder = next(part.roots["own"] for part in parts if "own" in part.roots)
    holder.a["it"].x[field] = value
    with pytest.raises(StateMismatch, match="does not fit"):
        twin.restore(saved)
    assert twin.move("n") == other.move("n")
