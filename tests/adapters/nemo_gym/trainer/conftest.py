"""Servers for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .stand_in import Stack


@pytest.fixture
def stack() -> Iterator[Stack]:
    found = Stack()
    yield found
    found.stop()
