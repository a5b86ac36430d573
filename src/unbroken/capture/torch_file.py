"""Writes tensors to a file that `torch.load(path, weights_only=True)` reads. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from unbroken.errors import NotCapturable


def tensor_of(dtype: str, bits: NDArray[Any]) -> torch.Tensor:
    """Return a tensor of the type named `dtype` (``bfloat16``) with the elements, or their bits, in `bits`."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise NotCapturable(
            f"This torch has no type {dtype!r}.", hint="Use a newer torch, or export to .npz."
        )
    tensor = torch.from_numpy(bits.copy(order="C"))
    return tensor if tensor.dtype == kind else tensor.view(kind)


def write_state_dicts(path: Path, modules: Mapping[str, Mapping[str, tuple[str, NDArray[Any]]]]) -> None:
    """Write one module's tensors as a `state_dict`, or those of several as a dict of them."""
    states = {
        place: {name: tensor_of(dtype, bits) for name, (dtype, bits) in tensors.items()}
        for place, tensors in modules.items()
    }
    torch.save(next(iter(states.values())) if len(states) == 1 else states, path)
