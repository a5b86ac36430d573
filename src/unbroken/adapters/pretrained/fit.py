"""Whether what `save_pretrained` writes can come back into the model that has written it.

Both sides are at hand when a training starts. Told only by the next start, it would be too late: no checkpoint of
that run could ever be used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from unbroken.capture.torch import tensor_table
from unbroken.errors import ConfigError

if TYPE_CHECKING:
    from unbroken.adapters.pretrained.layout import Layout

_HINT = "Track the model itself, or have save_pretrained write each parameter under its name in state_dict, as it is."


def check(layout: Layout, module: torch.nn.Module | None, *, values: bool) -> None:
    """Refuse weights that the model cannot take back as it had them. `values`: compare them, too.

    A buffer that is left out is none of them: it is named, and the component is then not exact. The same holds
    where there are no weights at all, as in pickled files.

    Raises:
        ConfigError: a tensor has another name, type, shape or value than in the model, or a parameter is left out.
    """
    if not layout.tensors:
        return
    live: dict[str, Any] = {} if module is None else dict(tensor_table(module))
    if unknown := sorted(layout.tensors.keys() - live.keys()):
        whose = "none of the parts is a torch module" if module is None else "the model has none of this name"
        _refuse(f"save_pretrained writes {_few(unknown)}, and {whose}, so it could never be restored.")
    for name, tensor in layout.tensors.items():
        written, there = _form(tensor), _form(live[name])
        if written != there:
            _refuse(
                f"save_pretrained writes {name} as {written}, and the model has {there}, so it could never be restored."
            )
        if values and not _same(tensor, live[name]):
            _refuse(f"save_pretrained writes other values of {name} than the model has.")
    covered = {_memory(live[name]) for name in layout.tensors}
    left_out = sorted(
        name
        for name, tensor in live.items()
        if isinstance(tensor, torch.nn.Parameter)
        and name not in layout.tensors
        and _memory(tensor) not in covered
    )
    if left_out:
        _refuse(f"save_pretrained leaves out {_few(left_out)}, so the model could never be restored.")


def _refuse(problem: str) -> None:
    raise ConfigError(problem, hint=_HINT)


def _same(written: torch.Tensor, live: torch.Tensor) -> bool:
    """Whether both hold the same bytes, as far as this process can see them: shards and what has none are let be."""
    if (
        type(live) not in (torch.Tensor, torch.nn.Parameter)
        or live.layout is not torch.strided
        or live.is_meta
    ):
        return True
    mine = live.detach().cpu().contiguous().flatten()
    theirs = written.contiguous().flatten()
    return torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def _memory(tensor: torch.Tensor) -> tuple[int, int, int]:
    return tensor.data_ptr(), tensor.numel(), tensor.element_size()


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
