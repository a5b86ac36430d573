"""Where the data loaders of a `fit` stand. What is known of PyTorch's own stands in `capture.loaders`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

from unbroken.capture import loaders

LOADERS = "data_loaders"


def take_out_orders(iterators: Iterable[Any]) -> None:
    """Take out the order of every loader's pass in this process whose sampler is known."""
    loaders.take_out_orders(iterators, unwrap=_wrapped)


def _wrapped(sampler: Any) -> Any:
    if type(sampler) is not DistributedSamplerWrapper:
        return sampler
    dataset: Any = sampler.dataset
    return dataset._sampler  # read out at once, but only of PyTorch's own is known that they yield numbers
