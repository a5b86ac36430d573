"""Servers that live as long as the tests of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.proxy import Proxy
from tests.store.servers import Azurite, Rclone, SeaweedFS, Server


def _running(kind: type[Server], factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = kind(factory.mktemp(kind.__name__.lower()))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _running(SeaweedFS, tmp_path_factory)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _running(Azurite, tmp_path_factory)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _running(Rclone, tmp_path_factory)


@pytest.fixture
def through(seaweedfs: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of SeaweedFS; stores that are made while it is used go through it."""
    with Proxy(seaweedfs.port) as proxy:
        for name, value in seaweedfs.environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy
