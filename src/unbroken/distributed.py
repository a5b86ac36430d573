"""Several processes that train one run: `unbroken.Run(root, world=unbroken.distributed.world())`."""

from __future__ import annotations

from unbroken.adapters.distributed.world import world
from unbroken.engine.world import REPLICATED, World

__all__ = ["REPLICATED", "World", "world"]
