"""Object stores by the suite that every store passes: SeaweedFS for S3, Azurite for Azure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.servers import Server
from unbroken.errors import StoreError
from unbroken.format.buffers import Content
from unbroken.store.base import ByteStore, put_all
from unbroken.store.object import ObjectStore
from unbroken.testing.store_suite import StoreSuite


class ObjectStoreSuite(StoreSuite):
    url = ""

    def serve(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        self.url = server.place()

    def make_store(self, tmp_path: Path) -> ObjectStore:
        return ObjectStore(f"{self.url}/a prefix", below="run 1")

    def reopen(self, store: ByteStore) -> ObjectStore:
        return ObjectStore(f"{self.url}/a prefix", below="run 1")

    def test_names_appear_after_all_contents(self, store: ByteStore) -> None:
        """A bucket has no way to show several names at once. The last one comes last."""
        names = [f"d/{number}" for number in range(20)]
        seen: list[list[str]] = []

        def contents() -> Iterator[tuple[str, Content]]:
            yield from ((name, b"x") for name in names)
            seen.append(store.list())
            yield "manifest", b"last"

        put_all(store, contents())
        assert "manifest" not in seen[0]
        assert store.list() == sorted([*names, "manifest"])

    def test_one_content_that_fails_leaves_none_of_them(self, store: ByteStore) -> None:
        """Nor can it take back those that are there. The last one is not."""

        def broken() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            put_all(store, [("d/1", b"new"), ("e/3", broken()), ("manifest", b"last")])
        with pytest.raises(StoreError):
            put_all(store, [("d/1", b"new"), ("../2", b"new"), ("manifest", b"last")])
        assert set(store.list()) <= {"d/1"}


class TestS3(ObjectStoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serve(seaweedfs, monkeypatch)


class TestAzure(ObjectStoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, azurite: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serve(azurite, monkeypatch)
