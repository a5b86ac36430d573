"""The local store by the suite that every store passes, with and without hard links."""

from __future__ import annotations

from pathlib import Path

from unbroken.store.base import ByteStore
from unbroken.store.local import LocalStore
from unbroken.testing.faulty_system import NoLinks
from unbroken.testing.store_suite import StoreSuite


class TestLocalStore(StoreSuite):
    def make_store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path / "deep" / "root")

    def reopen(self, store: ByteStore) -> LocalStore:
        assert isinstance(store, LocalStore)
        return LocalStore(store.local_path())


class TestLocalStoreWithoutLinks(StoreSuite):
    def make_store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path, system=NoLinks())

    def reopen(self, store: ByteStore) -> LocalStore:
        assert isinstance(store, LocalStore)
        return LocalStore(store.local_path(), system=NoLinks())
