"""torch.distributed.checkpoint over our store: give `save` a StorageWriter, `load` a StorageReader."""

from __future__ import annotations

from unbroken.adapters.dcp.rank_state import RankStateWarning, rank_state
from unbroken.adapters.dcp.reader import StorageReader
from unbroken.adapters.dcp.writer import StorageWriter
from unbroken.repo.retention import Best

__all__ = ["Best", "RankStateWarning", "StorageReader", "StorageWriter", "rank_state"]
