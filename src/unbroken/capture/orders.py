"""The order of samples that a pass over a data loader is in, read where it stands and gone on with elsewhere.

PyTorch's samplers are functions with `yield`. What one of them is still to give is read from its suspended frame:
the numbers that it has drawn, how many of them are used up, and how often it is to draw again. It is neither
resumed nor put aside by that, so reading it changes nothing. `Rest` and `Batches` go on from there as the function
would: they draw what it would draw, from the same generator, at the same moment. That moment counts. A
`RandomSampler` draws one permutation more as its epoch ends, which does not happen in an epoch that is left early,
and its generator may be one from which the data set draws, too.

Invariant: an order is read, or it is not; nothing of it is guessed. What this module knows of a function of
PyTorch's is tried out on a small sampler before the first use, and not used where it does not hold.

Not promised: samplers with functions of a person's own, unless they give an iterator over a list, a tuple, an
array or a range.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import cache
from inspect import GEN_CREATED, getgeneratorstate
from itertools import count, islice
from types import GeneratorType
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _InfiniteConstantSampler

_LAST = -1
_CHUNK = 32
"""How many samples a `RandomSampler` with replacement draws at a time."""
_END = object()
_OVER_RANGE = type(iter(range(0)))
_OVER_SEQUENCE: dict[type, type] = {
    type(iter([])): list, type(iter(())): tuple, type(iter(np.zeros(0))): np.ndarray,
}  # fmt: skip
Position = Iterator[Any]
"""An iterator of Python's own over a sequence or a range, which says where it stands."""


class Rest(Iterator[Any]):
    """What a sampler is still to give. `source` runs over what was drawn last.

    `laps`: how many times it draws the full number again, before it draws what remains; -1: never again.
    """

    def __init__(
        self, sampler: Any, source: Position, *, laps: int = _LAST, n: int = 0, generator: Any = None
    ) -> None:
        self.sampler = sampler
        self.source = source
        self.laps = laps
        self.n = n
        self.generator = generator

    def __next__(self) -> Any:
        while (item := next(self.source, _END)) is _END:
            if self.laps == _LAST:
                self.n, self.generator = 0, None  # as of a function that has ended
                raise StopIteration
            self.source = iter(self._draw())
        look_up = LOOK_UPS.get(type(self.sampler).__iter__)
        return item if look_up is None else look_up(self.sampler)[item]

    def _draw(self) -> list[int]:
        sampler, n = self.sampler, self.n
        self.laps -= 1
        last = self.laps == _LAST
        if sampler.replacement:
            size = sampler.num_samples % _CHUNK if last else _CHUNK
            drawn = torch.randint(high=n, size=(size,), dtype=torch.int64, generator=self.generator)
            return cast("list[int]", drawn.tolist())
        drawn = torch.randperm(n, generator=self.generator)
        return cast("list[int]", drawn.tolist()[: sampler.num_samples % n if last else n])


class Batches(Iterator[Any]):
    """What a `BatchSampler` is still to give. `size`: how many samples each batch must have; 0: the last one may
    have fewer."""

    def __init__(self, sampler: Any, rest: Rest, size: int) -> None:
        self.sampler = sampler
        self.rest = rest
        self.size = size
        self.ended = False

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        batch = [*islice(self.rest, self.size or self.sampler.batch_size)]
        if not batch or len(batch) < self.size:
            self.ended = True
            raise StopIteration
        return batch


class Begins:
    """An order of which nothing is drawn: the sampler's own function goes on with it."""


class Ended(Iterator[Any]):
    """An order that is used up."""

    def __next__(self) -> Any:
        raise StopIteration


Order = Begins | Ended | Rest | Batches

LOOK_UPS: dict[Any, Callable[[Any], Any]] = {SubsetRandomSampler.__iter__: lambda sampler: sampler.indices}
"""Function of a sampler -> what the numbers that it draws are positions in."""

_SAMPLERS = {
    sampler.__iter__
    for sampler in (
        SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler,
        list, tuple, range, np.ndarray,
    )
}  # fmt: skip
"""What may be anew at the beginning of a pass."""


def describe_sampler(function: Any, look_up: Callable[[Any], Any]) -> None:
    """Have a sampler of a framework read, by its `__iter__`: it gives what stands in `look_up(sampler)` at the
    positions of a list, through a generator expression."""
    LOOK_UPS[function] = look_up
    _SAMPLERS.add(function)


def order_of(iterator: Any) -> Order | None:
    """Return the order that a loader's pass in this process is in, None where nothing tells it. Only reads."""
    sampler = iterator._index_sampler
    held = vars(iterator).get("_sampler_iter")
    if isinstance(held, Ended):
        return held
    if isinstance(held, Batches):
        return Ended() if held.ended else held
    if isinstance(held, Rest):
        return _unless_ended(held)
    found = (
        _read_batches(held, sampler) if _function(sampler) is BatchSampler.__iter__ else _read(held, sampler)
    )
    known = found is None or isinstance(found, (Begins, Ended)) or _holds_here(_function(sampler))
    inner = found.rest if isinstance(found, Batches) else None
    return found if known and (inner is None or _holds_here(_function(inner.sampler))) else None


def _unless_ended(rest: Rest) -> Rest | Ended:
    over, _ = position_of(rest.source) or ((), 0)
    return Ended() if rest.laps == _LAST and type(over) is list and not over else rest


def position_of(source: Position) -> tuple[Any, int] | None:
    """Return what an iterator of Python's own runs over, and how far it is, None for any other one."""
    kind = type(source)
    if kind is not _OVER_RANGE and kind not in _OVER_SEQUENCE:
        return None
    _, (over, *_), *at = cast("Any", source).__reduce__()
    if kind is _OVER_RANGE:
        return over[at[0] or 0 :] if at else over, 0  # from Python 3.12 on it tells the rest itself
    if not at:
        return [], 0
    return (over, at[0]) if type(over) is _OVER_SEQUENCE[kind] else None


def positioned(over: Any, at: int) -> Position:
    """Return an iterator over a sequence or a range which is so far."""
    source: Any = iter(over)
    if at:
        source.__setstate__(at)
    return cast("Position", source)


def _function(sampler: Any) -> Any:
    return getattr(type(sampler), "__iter__", None)


def _read_batches(held: Any, sampler: Any) -> Order | None:
    if not isinstance(held, GeneratorType) or held.gi_code is not BatchSampler.__iter__.__code__:
        return None
    if held.gi_running:
        return None
    frame = held.gi_frame
    if frame is None:
        return Ended()
    within = _function(sampler.sampler)
    if within is _InfiniteConstantSampler.__iter__ or (_has_not_begun(held) and within in _SAMPLERS):
        return Begins()  # of the endless one, which only says "the next", each moment is the first
    inside = frame.f_locals.get("sampler_iter")
    rest = _read(inside, sampler.sampler)
    if isinstance(rest, Ended):
        rest = Rest(sampler.sampler, iter([]))
    if not isinstance(rest, Rest):
        return None
    return Batches(sampler, rest, len(frame.f_locals.get("args", ())))


def _read(held: Any, sampler: Any) -> Begins | Ended | Rest | None:
    if not isinstance(held, GeneratorType):
        return _unless_ended(Rest(sampler, held)) if position_of(held) is not None else None
    function, frame = _function(sampler), held.gi_frame
    code = getattr(function, "__code__", None)
    within_it = getattr(code, "co_consts", ()) if function in LOOK_UPS else ()
    if held.gi_running or (held.gi_code is not code and held.gi_code not in within_it):
        return None
    if function is _InfiniteConstantSampler.__iter__:
        return Begins()
    if function not in _SAMPLERS:
        return None
    if frame is None:
        return Ended()
    if _has_not_begun(held) and held.gi_code is code:
        return Begins()
    on_the_stack = gc.get_referents(held)
    if sys.version_info < (3, 11):  # there everything lies in the frame
        on_the_stack += gc.get_referents(frame)
    source = _only(on_the_stack, type(iter([])))
    if source is None or position_of(source) is None:
        return None
    if function is not RandomSampler.__iter__:
        return Rest(sampler, source)
    laps, variables = _only(on_the_stack, _OVER_RANGE), frame.f_locals
    if not {"n", "generator"} <= {*variables}:
        return None
    left = _LAST if laps is None else laps.__length_hint__()
    return Rest(sampler, source, laps=left, n=variables["n"], generator=variables["generator"])


def _has_not_begun(held: GeneratorType[Any, Any, Any]) -> bool:
    return getgeneratorstate(held) == GEN_CREATED


def _only(values: list[Any], kind: type) -> Any:
    found = {id(value): value for value in values if type(value) is kind}
    return next(iter(found.values())) if len(found) == 1 else None


Make = Callable[[torch.Generator], Any]
_TRIALS: dict[Any, list[Make]] = {
    RandomSampler.__iter__: [
        lambda g: RandomSampler(range(3), num_samples=7, generator=g),
        lambda g: RandomSampler(range(3), num_samples=6, generator=g),
        lambda g: RandomSampler(range(9), replacement=True, num_samples=35, generator=g),
    ],
    SubsetRandomSampler.__iter__: [lambda g: SubsetRandomSampler([5, 7, 9], generator=g)],
    WeightedRandomSampler.__iter__: [lambda g: WeightedRandomSampler([1.0, 2.0, 3.0], 4, generator=g)],
    BatchSampler.__iter__: [
        lambda g: BatchSampler(RandomSampler(range(5), generator=g), 2, drop_last=False),
        lambda g: BatchSampler(RandomSampler(range(5), generator=g), 2, drop_last=True),
        lambda g: BatchSampler(RandomSampler(range(4), generator=g), 2, drop_last=False),
    ],
}


@cache
def _holds_here(function: Any) -> bool:
    """Whether this PyTorch, under this Python, does in a function what this module knows of it."""
    with torch.device("cpu"):
        return all(_goes_on_alike(make) for make in _TRIALS.get(function, ()))


def _goes_on_alike(make: Make) -> bool:
    for used in count(1):
        generator = torch.Generator().manual_seed(1)
        sampler = make(generator)
        original = iter(sampler)
        if len([*islice(original, used)]) < used:
            return used > 1
        read = (
            _read_batches(original, sampler)
            if isinstance(sampler, BatchSampler)
            else _read(original, sampler)
        )
        if not isinstance(read, (Rest, Batches)):
            return False
        at, position = generator.get_state(), position_of(_source_of(read))
        assert position is not None
        ours = _moments(_copy(read, position), generator)
        generator.set_state(at)
        if ours != _moments(original, generator):
            return False
    return False


def _source_of(read: Rest | Batches) -> Position:
    return read.rest.source if isinstance(read, Batches) else read.source


def _copy(read: Rest | Batches, position: tuple[Any, int]) -> Iterator[Any]:
    if isinstance(read, Batches):
        return Batches(read.sampler, cast("Rest", _copy(read.rest, position)), read.size)
    return Rest(read.sampler, positioned(*position), laps=read.laps, n=read.n, generator=read.generator)


def _moments(order: Iterator[Any], generator: torch.Generator) -> list[tuple[Any, bytes]]:
    """Return what an order gives, and what is drawn by then."""
    found = [(item, generator.get_state().numpy().tobytes()) for item in order]
    return [*found, (None, generator.get_state().numpy().tobytes())]
