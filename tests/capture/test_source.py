"""What a source says of its snapshots: the worst that is known of each component."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from unbroken.capture.source import GraftSource, promises_of
from unbroken.state.graft import Graft
from unbroken.state.nodes import Value
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Component, Note, Promise, Snapshot
from unbroken.state.walk import Walk
from unbroken.types import Fidelity

PLACES = {"approximate": "part/a", "not captured": "part/b"}


def noted(*kinds: str) -> Snapshot:
    notes = [Note(kind, PLACES[kind], "said so") for kind in kinds]
    return Snapshot({"part": Component("part", {"part": None})}, notes)


@pytest.mark.parametrize("kinds", [("approximate", "not captured"), ("not captured", "approximate")])
def test_of_several_findings_the_worst_is_promised(kinds: tuple[str, ...]) -> None:
    promise = promises_of(noted(*kinds))["part"]
    assert promise.fidelity is Fidelity.NOT_CAPTURED
    assert promise.reason == "part/b: said so"


class Noting(GraftSource):
    """Finds what the test says while it captures."""

    def __init__(self, kinds: tuple[str, ...], known: Mapping[str, Promise]) -> None:
        super().__init__({"part": Finding(kinds)}, POLICY, promises=known)


class Finding:
    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds


class Finder:
    def attributes(self, obj: Finding) -> None:
        return None

    def capture(self, obj: Finding, walk: Walk) -> dict[str, Value]:
        for kind in obj.kinds:
            walk.note(kind, "said so")
        return {}

    def plan(self, extra: dict[str, Value], obj: Finding, graft: Graft) -> None: ...


POLICY = Policy(captors=(lambda obj: Finder() if isinstance(obj, Finding) else None,))


@pytest.mark.filterwarnings("ignore::unbroken.capture.uncovered.UncoveredWarning")
@pytest.mark.parametrize(
    ("known", "found", "promised"),
    [
        (Fidelity.EXACT, (), Fidelity.EXACT),
        (Fidelity.EXACT, ("approximate",), Fidelity.APPROXIMATE),
        (Fidelity.APPROXIMATE, (), Fidelity.APPROXIMATE),
        (Fidelity.APPROXIMATE, ("not captured",), Fidelity.NOT_CAPTURED),
        (Fidelity.NOT_CAPTURED, ("approximate",), Fidelity.NOT_CAPTURED),
    ],
)
def test_what_a_walk_finds_can_only_lower_what_was_known(
    known: Fidelity, found: tuple[str, ...], promised: Fidelity
) -> None:
    source = Noting(found, {"training_state": Promise(known, "known before")})
    assert source.capture().promises["training_state"].fidelity is promised
