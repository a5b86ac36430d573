"""What was made while training ran: what is built is not named, what no start could build is named at once."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from unbroken.capture.made_later import MadeLaterWarning
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.capture.uncovered import UncoveredWarning
from unbroken.engine.restore import Restored, restore
from unbroken.errors import StateMismatch
from unbroken.state.snapshot import Snapshot
from unbroken.state.staging import own
from unbroken.types import Fidelity


class Held:
    """What a loop holds; `late` and `pool` are filled while it trains."""

    def __init__(self) -> None:
        self.net = nn.Linear(2, 2)
        self.late: Any = None
        self.pool: list[Any] = []
        self.count = 0


def source_of(held: Held) -> GraftSource:
    return GraftSource({"it": held}, policy_of_loaded())


def taken(source: GraftSource) -> Snapshot:
    return own(source.capture())


def resumed(birth: Snapshot, saved: Snapshot, **options: Any) -> tuple[Held, Restored]:
    held = Held()
    source = source_of(held)
    return held, restore(source, saved, birth=birth, now=source.skeleton(), **options)


def hooked() -> nn.Module:
    net = nn.Linear(2, 2)
    net.register_forward_pre_hook(lambda *_: None)
    return net


UNBUILT: dict[str, Callable[[], Any]] = {
    "environment": lambda: gymnasium.make("CartPole-v1"),
    "function": lambda: lambda x: x,
    "network with hooks": hooked,
    "parameter of nothing": lambda: nn.Parameter(torch.ones(2)),
    "network of a class that is in no module": lambda: type("Local", (nn.Linear,), {})(2, 2),
}
MADE: dict[str, Callable[[Held], Any]] = {
    "copy": lambda held: copy.deepcopy(held.net),
    "network": lambda _: nn.Sequential(nn.Linear(2, 3), nn.ReLU()),
    "optimizer": lambda held: torch.optim.Adam(held.net.parameters()),
    "both": lambda _: [net := nn.Linear(2, 2), torch.optim.SGD(net.parameters(), lr=0.1)],
    "the same": lambda held: {"net": held.net},
    "values": lambda _: {"scores": [1.0], "seen": torch.ones(3), "more": Held()},
}


@pytest.mark.parametrize("make", UNBUILT.values(), ids=UNBUILT)
def test_what_no_start_could_build_is_named_at_the_first_save_that_holds_it_and_once(
    make: Callable[[], Any],
) -> None:
    held = Held()
    source = source_of(held)
    source.skeleton()
    assert {p.fidelity for p in taken(source).promises.values()} == {Fidelity.EXACT}
    held.late = make()
    with pytest.warns(MadeLaterWarning, match=r"Made while training ran: it/late"):
        saved = taken(source)
    assert Fidelity.NOT_CAPTURED in {p.fidelity for p in saved.promises.values()}
    held.count += 1
    taken(source)  # a second warning would be an error


def pruned(net: nn.Linear) -> None:
    prune.l1_unstructured(net, "weight", 0.5)  # type: ignore[no-untyped-call]


def extended(net: nn.Linear) -> None:
    net.register_parameter("weight_orig", nn.Parameter(torch.ones(2)))


@pytest.mark.parametrize("gain", [extended, pruned], ids=["new", "of another name"])
def test_a_parameter_that_a_network_of_the_script_has_gained_is_named_too(
    gain: Callable[[nn.Linear], None],
) -> None:
    """The network has no room for it at the next start, which refuses it."""
    held = Held()
    source = source_of(held)
    birth = source.skeleton()
    taken(source)
    gain(held.net)
    with pytest.warns(MadeLaterWarning, match=r"Made while training ran: .*it/net/_parameters/weight_orig"):
        saved = taken(source)
    with pytest.raises(StateMismatch, match="was made while training ran"):
        resumed(birth, saved)


@pytest.mark.parametrize("make", UNBUILT.values(), ids=UNBUILT)
def test_a_resume_says_what_to_do_about_it_and_goes_on_without_it_where_that_is_allowed(
    make: Callable[[], Any],
) -> None:
    held = Held()
    source = source_of(held)
    birth = source.skeleton()
    held.late, held.count = make(), 3
    held.pool += [held.late, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncoveredWarning)
        saved = taken(source)
    if hasattr(held.late, "_forward_pre_hooks") and type(held.late) is nn.Linear:
        return  # is built, without the hooks, which was said
    with pytest.raises(StateMismatch, match="made while training ran") as refused:
        resumed(birth, saved)
    (name,) = set(re.findall(r'allow_changed=\{"([^"]+)"\}', str(refused.value)))
    twin, result = resumed(birth, saved, allowed=[name])
    assert (twin.late, twin.count, twin.pool) == (None, 3, [None, 5])
    assert result.inexact != ()


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_is_built_is_not_named(make: Callable[[Held], Any]) -> None:
    held = Held()
    source = source_of(held)
    birth = source.skeleton()
    taken(source)
    held.late = make(held)
    held.pool.append(held.late)
    saved = taken(source)
    twin, result = resumed(birth, saved)
    assert twin.late is twin.pool[0]
    assert (result.reports, result.inexact) == ((), ())


def test_a_network_that_the_script_has_taken_out_is_refused() -> None:
    held = Held()
    source = source_of(held)
    birth, saved = source.skeleton(), taken(source)
    other = Held()
    other.net = None  # type: ignore[assignment]
    changed = source_of(other)
    with pytest.raises(StateMismatch, match="Linear -> None"):
        restore(changed, saved, birth=birth, now=changed.skeleton())


def test_a_generator_that_came_later_is_named_and_does_not_stop_a_resume() -> None:
    held = Held()
    source = source_of(held)
    birth = source.skeleton()
    taken(source)
    held.late, held.count = (n for n in range(9)), 4
    with pytest.warns(UncoveredWarning, match="it/late: builtins:generator"):
        saved = taken(source)
    twin, result = resumed(birth, saved)
    assert (twin.late, twin.count) == (None, 4)
    assert [p.fidelity for p in result.state.promises.values() if p.reason] == [Fidelity.NOT_CAPTURED]


def test_a_set_that_came_later_is_said_to_be_approximate() -> None:
    held = Held()
    source = source_of(held)
    taken(source)
    held.late = {"a", "b"}
    with pytest.warns(UncoveredWarning, match="only approximately: it/late"):
        taken(source)
