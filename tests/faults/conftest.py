from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from .starts import Starts


@pytest.fixture(scope="session")
def starts() -> Iterator[Starts]:
    both = Starts()
    yield both
    both.close()
