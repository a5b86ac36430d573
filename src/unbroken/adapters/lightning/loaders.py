"""Where the data loaders of a `fit` stand. What is known of PyTorch's own stands in `capture.loaders`."""

from __future__ import annotations

from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

from unbroken.capture.orders import describe_sampler

LOADERS = "data_loaders"

# It reads out the whole sampler that it wraps as a pass begins, and gives what stands at this rank's positions.
describe_sampler(DistributedSamplerWrapper.__iter__, lambda sampler: sampler.dataset)
