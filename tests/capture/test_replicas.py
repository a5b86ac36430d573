"""Which components of a data-parallel training are each rank's own, and what a world makes of that."""

from __future__ import annotations

from typing import Any

import pytest

from unbroken.capture.replicas import SCHEDULERS, WEIGHTS, own_components, shared_world
from unbroken.capture.tracked import Tracked
from unbroken.engine.world import REPLICATED, World

torch = pytest.importorskip("torch")


class Agent:
    """Holds its network where no root shows it."""

    def __init__(self, network: Any) -> None:
        self.parts = {"network": network}


def network(*, buffers: bool) -> Any:
    layers = [torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2, track_running_stats=buffers)]
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("buffers", [True, False])
def test_a_module_with_buffers_makes_weights_each_ranks_own_wherever_it_lies(buffers: bool) -> None:
    for objects in ({"model": network(buffers=buffers)}, {"agent": Agent(network(buffers=buffers))}):
        tracked = Tracked()
        tracked.add(objects)
        world = tracked.source().among(World(rank=1, size=2, agree=bool))
        assert world is not None
        assert world.ranks.replicated == (REPLICATED - WEIGHTS if buffers else REPLICATED)
        assert (world.replicated, world.rank, world.agree) == (REPLICATED, 1, bool)


def test_in_a_variable_too() -> None:
    tracked = Tracked()
    tracked.vars.model = network(buffers=True)
    world = tracked.source().among(World(rank=0, size=2))
    assert world is not None
    assert world.ranks.replicated == REPLICATED - WEIGHTS


def test_a_process_alone_has_no_replicas() -> None:
    source = Tracked().source()
    alone = World(rank=0, size=1)
    assert source.among(None) is None
    assert source.among(alone) is alone


def test_gradients_that_are_gathered_are_each_ranks_own() -> None:
    assert own_components([network(buffers=False)]) == frozenset()
    assert own_components([network(buffers=False)], gathers=True) == WEIGHTS


def test_a_scheduler_that_follows_a_metric_follows_what_its_rank_has_measured() -> None:
    optimizer = torch.optim.SGD(network(buffers=False).parameters(), lr=0.1)
    steps = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    assert own_components([optimizer, steps]) == frozenset()
    assert own_components([plateau]) == SCHEDULERS


def test_what_a_person_has_not_called_replicated_is_not_made_so() -> None:
    world = shared_world(World(rank=0, size=3, replicated={"training_state"}, sync_timeout=7), WEIGHTS)
    assert world.ranks.replicated == {"training_state"}
    assert world.ranks.sync_timeout == 7
