"""Streams of data as people write them: one comes back exactly, or it is said by name that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lightning")

from unbroken.repo.repository import Repository
from unbroken.types import Fidelity

from .fits import cut, fit, quiet
from .trainings import streamed

pytestmark = quiet

named = pytest.mark.filterwarnings("ignore:Comes back only approximately")
"""At the save; what is looked at here is the promise of the checkpoint."""


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=named) for kind in ("counted", "paired", "read")), "own"]
)
def test_a_stream_is_exact_or_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected, _ = fit(streamed(kind=kind), tmp_path / "U", every=5, max_epochs=1)
    cut(streamed(kind=kind), tmp_path / "R", 13, every=5, max_epochs=1)
    repository = Repository.open(tmp_path / "R", "job")
    newest = repository.commits()[0]
    assert newest.step == 10
    promises = repository.meta(newest).fidelity.values()
    capsys.readouterr()
    module, _ = fit(streamed(kind=kind), tmp_path / "R", every=5, max_epochs=1)
    said = capsys.readouterr().err
    if kind == "own":
        assert module.seen == expected.seen
        assert len(module.seen) == 16
        assert all(promise.fidelity is Fidelity.EXACT for promise in promises)
        return
    assert module.seen != expected.seen
    assert f"Numbers.{kind} starts anew" in "".join(promise.reason for promise in promises)
    assert "approximate" in said


def test_left_cold_the_exact_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unbroken.adapters.lightning.source import FitSource

    from .runner import leave_cold

    expected, _ = fit(streamed(kind="own"), tmp_path / "U", every=5, max_epochs=1)
    cut(streamed(kind="own"), tmp_path / "R", 13, every=5, max_epochs=1)
    monkeypatch.setattr(FitSource, "plan", FitSource.plan)  # put back at the end
    leave_cold(["passes"])
    module, _ = fit(streamed(kind="own"), tmp_path / "R", every=5, max_epochs=1)
    assert module.seen != expected.seen
