"""Where the data loaders stand: how far an epoch's order of samples is used up.

The order of samples of a `DataLoader` lies in a generator function of its sampler. For PyTorch's own samplers
it is drawn at once and then only read, so it is taken out as numbers, which can be saved and put back.

Not promised: loaders with worker processes, which fetch ahead where nobody can see it; and orders that a
sampler of a person's own makes up while it goes along, beyond what `capture.frames` says of its function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import (
    _InfiniteConstantSampler,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from unbroken.state.nodes import Value
from unbroken.state.policy import Captor

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

LOADERS = "data_loaders"
_DRAWN_AT_ONCE = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


class Order(Iterator[Any]):
    """One pass over a sampler. Draws everything when it is first asked, as the sampler itself does.

    `numbers` are the samples one after the other, `ends` where each batch ends (none: not in batches).
    """

    def __init__(self, source: Iterator[Any], *, begun: bool) -> None:
        self._source = source
        self.drawn = False
        self.at = 0
        self.batched = True
        self.numbers = np.zeros(0, np.int64)
        self.ends = np.zeros(0, np.int64)
        if begun:
            self._draw()

    def __next__(self) -> Any:
        if not self.drawn:
            self._draw()
        if self.at >= (len(self.ends) if self.batched else len(self.numbers)):
            raise StopIteration
        at, self.at = self.at, self.at + 1
        if not self.batched:
            return int(self.numbers[at])
        return self.numbers[self.ends[at - 1] if at else 0 : self.ends[at]].tolist()

    def _draw(self) -> None:
        items = list(self._source)
        self.drawn = True
        self.batched = not items or isinstance(items[0], list)
        if self.batched:
            self.ends = np.cumsum([len(item) for item in items], dtype=np.int64)
            items = [number for item in items for number in item]
        self.numbers = np.asarray(items, np.int64)


def take_out_orders(iterators: Iterable[Any]) -> None:
    """Take out the order of every loader's pass in this process whose sampler is known."""
    for iterator in iterators:
        if type(iterator) is not _SingleProcessDataLoaderIter:
            continue
        held: Any = iterator
        if isinstance(held._sampler_iter, GeneratorType) and _drawn_at_once(held._index_sampler):
            held._sampler_iter = Order(held._sampler_iter, begun=held._num_yielded > 0)


def _drawn_at_once(sampler: Any) -> bool:
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) is DistributedSamplerWrapper:
        wrapped: Any = sampler.dataset
        sampler = wrapped._sampler  # read out at once, but only of these is known that it yields numbers
    if type(sampler) is RandomSampler:
        # With a generator that others may use too, it draws a few at a time.
        return not sampler.replacement or sampler.generator is None
    return type(sampler) in _DRAWN_AT_ONCE


def out_of_reach(iterators: Iterable[Any]) -> list[str]:
    """Return what of the loaders' passes does not come back where an epoch is continued in the middle, with
    the reasons."""
    found: list[str] = []
    for iterator in iterators:
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            found.append(_in_workers(iterator))
        elif type(iterator) is _SingleProcessDataLoaderIter:
            held: Any = iterator
            sampler = getattr(held._index_sampler, "sampler", held._index_sampler)
            if (
                isinstance(held._sampler_iter, GeneratorType)
                and type(sampler) is not _InfiniteConstantSampler
            ):
                found.append(
                    f"the order of {type(sampler).__name__} is made up while it goes along, in a function with"
                    " `yield`, so an epoch that is continued in the middle begins it anew"
                )
    return found


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


_captor = WorkersCaptor()


def workers_rule(obj: object) -> Captor | None:
    """Return the captor of a pass in worker processes, None for anything else."""
    return _captor if isinstance(obj, _MultiProcessingDataLoaderIter) else None
