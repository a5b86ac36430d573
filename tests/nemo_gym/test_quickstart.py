"""The quickstart with NeMo Gym: trainer, agent and server are killed, and it ends as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

from tests.quickstart.record import carried_out, results
from tests.quickstart.terminal import QUICKSTARTS


def test_killed_with_its_servers_it_comes_to_the_same(tmp_path: Path) -> None:
    (quickstart,) = [one for one in QUICKSTARTS if one.name == "nemo-gym"]
    undisturbed, _, after = carried_out(quickstart, tmp_path)
    assert any("goes on at step" in line for line in after)
    assert results(after) == results(undisturbed) != []
