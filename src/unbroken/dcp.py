"""torch.distributed.checkpoint over our store: `dcp.save(state, storage_writer=unbroken.dcp.StorageWriter(root))`."""

from __future__ import annotations

from unbroken.adapters.dcp.reader import StorageReader
from unbroken.adapters.dcp.writer import StorageWriter
from unbroken.repo.retention import Best

__all__ = ["Best", "StorageReader", "StorageWriter"]
