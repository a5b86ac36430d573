"""What `self.log` has gathered since the epoch began: the means of an epoch go on where they stood.

Lightning makes the objects that hold it when a name is first logged, and a freshly started program has none
of them yet. They are built here from plain facts; no function comes from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)

from unbroken.state.nodes import Dict, Value

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

CLASS = "lightning.pytorch.trainer.connectors.logger_connector.result:_ResultCollection"
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": torch.mean, "sum": torch.sum, "max": torch.max, "min": torch.min,
    "python's sum": sum, "python's max": max, "python's min": min,
}  # fmt: skip
_FACTS = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx",
    "dataloader_idx", "metric_attribute",
)  # fmt: skip
_STATE = ("value", "cumulated_batch_size", "has_reset", "_forward_cache", "_computed", "_update_count")


class ResultsCodec:
    """Codec of a collection of logged values. `reduce` is how this training reduces over its processes."""

    name = "lightning.results"
    mutable = True

    def __init__(self, reduce: Callable[..., Any]) -> None:
        self._reduce = reduce

    def encode(self, value: _ResultCollection, walk: Walk) -> Value:
        if not walk.contents:
            return Dict(v={})
        for key, metric in value.items():
            if metric.meta.sync.group is not None:
                walk.note("approximate", f"{key}: after a restart it is reduced over all processes")
        return Dict(v={"logged": walk.child("logged", {key: _row(metric) for key, metric in value.items()})})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(twin, _ResultCollection) or not graft.claim(twin):
            return graft.refuse("logged values were saved, and the program has none here.", twin)
        graft.register(twin)
        rows: Any = None
        if isinstance(payload, Dict) and payload.v is not None:
            rows = graft.value("logged", payload.v.get("logged"))
        if not isinstance(rows, dict):
            return graft.refuse("logged values need a dict.", twin)
        # The rows are complete only once the writes planned for them have run: same phase, later place.
        graft.write(self._fill, twin, rows)
        return twin

    def _fill(self, twin: _ResultCollection, rows: dict[str, dict[str, Any]]) -> None:
        twin.clear()
        twin.batch = twin.batch_size = twin.dataloader_idx = None
        for key, row in rows.items():
            meta = _Metadata(**{fact: row[fact] for fact in _FACTS}, reduce_fx=_REDUCTIONS[row["reduce_fx"]])
            meta.sync = _Sync(
                _should=row["sync_dist"], fn=self._reduce, _group=None, rank_zero_only=row["rank_zero_only"]
            )
            metric = _ResultMetric(meta, is_tensor=row["is_tensor"])
            vars(metric).update({name: row[name] for name in _STATE if name in row})
            twin[key] = metric


def _row(metric: _ResultMetric) -> dict[str, Any]:
    meta = metric.meta
    row: dict[str, Any] = {fact: getattr(meta, fact) for fact in _FACTS}
    row |= {
        "reduce_fx": next(name for name, known in _REDUCTIONS.items() if known is meta.reduce_fx),
        "sync_dist": meta.sync.should,
        "rank_zero_only": meta.sync.rank_zero_only,
        "is_tensor": metric.is_tensor,
    }
    held = vars(metric)
    return row | {name: held[name] for name in _STATE if name in held}
