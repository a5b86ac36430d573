"""Where the passes over PyTorch's data loaders stand: how far an epoch's order of samples is used up.

What `iter(loader)` returns goes on in the middle of an epoch, and the next epoch draws what it would have drawn,
whether the one before it is gone through or left early. `capture.orders` says how an order is read.

Invariant: a save, and whatever else only asks, leaves a pass as it is. Only a restore, where its writes are
executed, gives it another order.

Not promised: loaders with worker processes, which fetch ahead where nobody can see it; and orders that a
sampler of a person's own makes up while it goes along, beyond what `capture.frames` says of its function.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from unbroken.capture.orders import Batches, Begins, Ended, Rest, order_of, position_of, positioned
from unbroken.state.nodes import Value
from unbroken.state.policy import Captor, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_HELD = "_sampler_iter"
_STANDS = "<stands>"
_BEGINS, _ENDED, _WITHIN = "begins", "ended", "within"
_OF_RANGE = -1
"""For `at`: the numbers are the start, the stop and the step of the range that is left."""


def out_of_reach(iterators: Iterable[Any]) -> list[str]:
    """Return what of the loaders' passes does not come back where an epoch is continued in the middle, with
    the reasons."""
    found: list[str] = []
    for iterator in iterators:
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            found.append(_in_workers(iterator))
        elif type(iterator) is _SingleProcessDataLoaderIter and order_of(iterator) is None:
            found.append(_made_up(iterator))
    return found


def _made_up(iterator: Any) -> str:
    sampler = getattr(iterator._index_sampler, "sampler", iterator._index_sampler)
    return (
        f"the order of {type(sampler).__name__} is made up while it goes along, in a function with"
        " `yield`, so an epoch that is continued in the middle begins it anew"
    )


def _in_workers(iterator: Any) -> str:
    return (
        f"num_workers={iterator._num_workers}: what worker processes have fetched ahead, and how far they are,"
        " cannot be reached, so an epoch that is continued in the middle begins its data anew; num_workers=0 is"
        " exact"
    )


class WorkersCaptor:
    """Captor of a loader's pass that worker processes make: it stays the program's own."""

    def attributes(self, obj: Any) -> frozenset[str]:
        return frozenset()

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        walk.note("approximate", _in_workers(obj))
        return {}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        """Nothing to write."""


class PassCaptor:
    """Captor of a pass in this process: where its order stands, or that nothing tells it."""

    def attributes(self, obj: Any) -> frozenset[str] | None:
        # What gives an order that can be read is in what `capture` returns.
        return None if order_of(obj) is None else frozenset(vars(obj)) - {_HELD}

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        order = order_of(obj)
        if order is None:
            walk.note("approximate", _made_up(obj))
            return {}
        if isinstance(order, (Begins, Ended)):
            return {_STANDS: _BEGINS if isinstance(order, Begins) else _ENDED}
        rest = order.rest if isinstance(order, Batches) else order
        position = position_of(rest.source)
        assert position is not None, "or it would not have been read"
        over, at = position
        if isinstance(over, range):
            over, at = (over.start, over.stop, over.step), _OF_RANGE
        return {
            _STANDS: _WITHIN,
            "<size>": order.size if isinstance(order, Batches) else None,
            "<numbers>": walk.child("<numbers>", over),
            "<at>": at,
            "<laps>": rest.laps,
            "<n>": rest.n,
            "<generator>": walk.child("<generator>", rest.generator),
        }

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        stands = extra.get(_STANDS)
        if stands in (_BEGINS, _ENDED):
            return graft.write(_begin if stands == _BEGINS else _end, obj)
        numbers = graft.value("<numbers>", extra.get("<numbers>"))
        generator = graft.value("<generator>", extra.get("<generator>"))
        at, laps, n, size = (extra.get(f"<{name}>") for name in ("at", "laps", "n", "size"))
        if (
            stands != _WITHIN
            or not all(
                type(number) is int and number >= least for number, least in ((at, -1), (laps, -1), (n, 0))
            )
            or not (size is None or (type(size) is int and size >= 0))
            or not (_is_range(numbers) if at == _OF_RANGE else type(numbers) in (list, tuple, np.ndarray))
            or not (generator is None or isinstance(generator, torch.Generator))
        ):
            return graft.error("an order of samples consists of what was drawn, and how far it is used up.")
        return graft.write(_go_on, obj, numbers, at, laps, n, generator, size)


def _is_range(numbers: Any) -> bool:
    whole = type(numbers) is tuple and [type(number) for number in numbers] == [int, int, int]
    return whole and numbers[2] != 0


def _begin(obj: Any) -> None:
    obj._sampler_iter = iter(obj._index_sampler)


def _end(obj: Any) -> None:
    obj._sampler_iter = Ended()


def _go_on(obj: Any, numbers: Any, at: int, laps: int, n: int, generator: Any, size: int | None) -> None:
    # Here, where all is written: an iterator is never further than what it runs over.
    source = iter(range(*numbers)) if at == _OF_RANGE else positioned(numbers, at)
    sampler = obj._index_sampler
    rest = Rest(sampler if size is None else sampler.sampler, source, laps=laps, n=n, generator=generator)
    obj._sampler_iter = rest if size is None else Batches(sampler, rest, size)


_workers, _pass = WorkersCaptor(), PassCaptor()


def passes_rule(obj: object) -> Captor | None:
    """Return the captor of a pass over a loader, None for anything else."""
    if type(obj) is _SingleProcessDataLoaderIter:
        return _pass
    return _workers if isinstance(obj, _MultiProcessingDataLoaderIter) else None


POLICY = Policy(captors=(passes_rule,))
_LOADER = "torch.utils.data.dataloader"
PASSES = Policy(structural=frozenset({f"{_LOADER}:DataLoader", f"{_LOADER}:_BaseDataLoaderIter"}))
"""For loops of a person's own, whose script has built the pass."""
