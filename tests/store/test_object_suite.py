"""Object stores by the suite that every store passes: SeaweedFS for S3, Azurite for Azure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.servers import Server
from unbroken.store.base import ByteStore
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


class TestS3(ObjectStoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serve(seaweedfs, monkeypatch)


class TestAzure(ObjectStoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, azurite: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serve(azurite, monkeypatch)
