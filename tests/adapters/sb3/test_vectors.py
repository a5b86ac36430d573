"""SB3's vectors go on in a fresh process: with every wrapper of them, in workers, and made by converters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unbroken.testing.env_oracle import three_way_vector
from unbroken.types import Fidelity

from . import vectors


@pytest.mark.parametrize("make", [vectors.numbers, vectors.pictures, vectors.parts, vectors.workers])
def test_a_vector_goes_on_with_its_wrappers(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "capture/worlds"))
    outcome = three_way_vector(make, before=45, dialect=vectors.StableBaselines())
    assert outcome.readback == []
    assert outcome.restored == outcome.undisturbed
    assert outcome.exact
    assert outcome.told_apart
    assert outcome.promise.fidelity is Fidelity.EXACT
