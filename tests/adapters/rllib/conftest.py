"""One Ray and two interpreters for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adapters.rllib.cluster import Cluster, Runner


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def first(cluster: Cluster) -> Iterator[Runner]:
    runner = Runner(cluster, 1)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def second(cluster: Cluster) -> Iterator[Runner]:
    runner = Runner(cluster, 2)
    yield runner
    runner.close()
