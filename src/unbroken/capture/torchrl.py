"""What TorchRL's replay buffers do not take back by themselves.

Source: `TensorStorage.load_state_dict` of TorchRL 0.14. A storage that is empty makes rows of what it is given, but on no
device, where those that were saved name one.
"""

from __future__ import annotations

from typing import Any


def settle(buffer: Any, state: Any) -> None:
    """Have the rows of a buffer that has just taken its state say on which device they lie, as before."""
    storage: Any = getattr(buffer, "_storage", None)
    rows: Any = getattr(storage, "_storage", None)
    if storage is None or getattr(type(rows), "__module__", "").partition(".")[0] != "tensordict":
        return
    of_rows = getattr(state.get("_storage", {}).get("_storage"), "_metadata", {})
    device = of_rows.get("", {}).get("device")
    if rows.device is None and device is not None:
        storage._storage = rows.to(device)  # the same tensors, where they lie there
