"""Every quickstart as it stands, killed with all that it has started: it ends as the one that nothing happened to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quickstart.record import carried_out, results
from tests.quickstart.terminal import QUICKSTARTS, Quickstart

HERE = [one for one in QUICKSTARTS if one.needs != "nemo_gym"]
"""That one has an environment of its own, and its test there."""


@pytest.mark.exactness
@pytest.mark.parametrize("quickstart", HERE, ids=lambda one: one.name)
def test_killed_and_started_again_it_comes_to_the_same(quickstart: Quickstart, tmp_path: Path) -> None:
    pytest.importorskip(quickstart.needs)
    undisturbed, _, after = carried_out(quickstart, tmp_path)
    assert any("goes on at step" in line for line in after)
    assert results(after) == results(undisturbed) != []
