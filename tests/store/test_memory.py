"""The store in memory, by the suite that every store passes."""

from __future__ import annotations

from pathlib import Path

from unbroken.store.memory import MemoryStore
from unbroken.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    def make_store(self, tmp_path: Path) -> MemoryStore:
        return MemoryStore()
