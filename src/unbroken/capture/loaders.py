"""Where the passes over PyTorch's data loaders stand: how far an epoch's order of samples is used up.

The order of samples of a `DataLoader` lies in a generator function of its sampler. For PyTorch's own samplers
it is drawn at once and then only read, so it is taken out as numbers, which can be saved and put back: what
`iter(loader)` returns goes on in the middle of an epoch, and the next epoch draws what it would have drawn.

Invariant: what is saved of an order is what is left of it, whenever it was taken out.

Not promised: loaders with worker processes, which fetch ahead where nobody can see it; and orders that a
sampler of a person's own makes up while it goes along, beyond what `capture.frames` says of its function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
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
from unbroken.state.policy import Captor, Policy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_DRAWN_AT_ONCE = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


class Unwrap(Protocol):
    """Returns the sampler inside a framework's wrapper, or what it was given."""

    def __call__(self, sampler: Any, /) -> Any: ...


class Order(Iterator[Any]):
    """One pass over a sampler. Draws everything when it is first asked, as the sampler itself does.

    `numbers` are the samples one after the other, `ends` where each batch ends (none: not in batches).
    """

    def __init__(self, source: Iterator[Any], *, begun: bool) -> None:
        self._source = source
        self.drawn = False
        self.batched = True
        self._at = 0
        self._numbers = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)
        if begun:
            self._draw()

    def __next__(self) -> Any:
        if not self.drawn:
            self._draw()
        if self._at >= (len(self._ends) if self.batched else len(self._numbers)):
            raise StopIteration
        at, self._at = self._at, self._at + 1
        if not self.batched:
            return int(self._numbers[at])
        return self._numbers[self._ends[at - 1] if at else 0 : self._ends[at]].tolist()

    def left(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the samples that are left, and where each of the batches that are left ends among them."""
        if not self.batched:
            return self._numbers[self._at :].copy(), self._ends.copy()
        used = int(self._ends[self._at - 1]) if self._at else 0
        return self._numbers[used:].copy(), self._ends[self._at :] - used

    def put_back(self, numbers: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Take what `left` returned for all that there is."""
        self._at, self._numbers, self._ends = 0, numbers, ends

    def _draw(self) -> None:
        items = list(self._source)
        self.drawn = True
        self.batched = not items or isinstance(items[0], list)
        if self.batched:
            self._ends = np.cumsum([len(item) for item in items], dtype=np.int64)
            items = [number for item in items for number in item]
        self._numbers = np.asarray(items, np.int64)


def take_out_orders(iterators: Iterable[Any], *, unwrap: Unwrap = lambda sampler: sampler) -> None:
    """Take out the order of every loader's pass in this process whose sampler is known."""
    for iterator in iterators:
        if type(iterator) is not _SingleProcessDataLoaderIter:
            continue
        held: Any = iterator
        source = vars(held).get("_sampler_iter")
        if isinstance(source, GeneratorType) and _drawn_at_once(held._index_sampler, unwrap):
            held._sampler_iter = Order(source, begun=held._num_yielded > 0)


def _drawn_at_once(sampler: Any, unwrap: Unwrap) -> bool:
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    sampler = unwrap(sampler)
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
        elif type(iterator) is _SingleProcessDataLoaderIter and (why := _made_up(iterator)):
            found.append(why)
    return found


def _made_up(iterator: Any) -> str:
    """Return why the order of a pass in this process does not come back, or nothing."""
    sampler = getattr(iterator._index_sampler, "sampler", iterator._index_sampler)
    if not isinstance(iterator._sampler_iter, GeneratorType) or type(sampler) is _InfiniteConstantSampler:
        return ""
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


class OrderCaptor:
    """Captor of an order: what is left of it. What was used up tells only when it was taken out."""

    def attributes(self, obj: Order) -> frozenset[str]:
        return frozenset({"drawn", "batched"})

    def capture(self, obj: Order, walk: Walk) -> dict[str, Value]:
        numbers, ends = obj.left()
        return {"numbers": walk.child("<numbers>", numbers), "ends": walk.child("<ends>", ends)}

    def plan(self, extra: dict[str, Value], obj: Order, graft: Graft) -> None:
        left = [graft.value(f"<{name}>", extra.get(name)) for name in ("numbers", "ends")]
        if not all(
            isinstance(part, np.ndarray) and part.dtype == np.int64 and part.ndim == 1 for part in left
        ):
            return graft.error("an order of samples consists of whole numbers.")
        return graft.write(obj.put_back, *left)


_workers, _order = WorkersCaptor(), OrderCaptor()


def loaders_rule(obj: object) -> Captor | None:
    """Return the captor of an order and of a pass in worker processes, None for anything else."""
    if type(obj) is Order:
        return _order
    return _workers if isinstance(obj, _MultiProcessingDataLoaderIter) else None


class PassCaptor:
    """Captor of a pass in this process: takes its order out, and says where that cannot be done."""

    def attributes(self, obj: Any) -> None:
        take_out_orders([obj])

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        if why := _made_up(obj):
            walk.note("approximate", why)
        return {}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        """Its attributes are all there is."""


_pass = PassCaptor()


def passes_rule(obj: object) -> Captor | None:
    """Return the captor of a pass that a person's own loop is in, None for anything else."""
    return _pass if type(obj) is _SingleProcessDataLoaderIter else None


POLICY = Policy(captors=(loaders_rule,))
_LOADER = "torch.utils.data.dataloader"
PASSES = Policy(
    captors=(passes_rule,), structural=frozenset({f"{_LOADER}:DataLoader", f"{_LOADER}:_BaseDataLoaderIter"})
)
"""For loops of a person's own, which nobody asks at each batch to hold on to its pass."""
