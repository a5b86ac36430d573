"""Runs cases in several processes, and gathers what came of them."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec

from torture import clocks, crashes, damage, network, objects, places, returned
from torture.case import Case, Outcome, tried
from torture.disks import room

_BEHIND: Final = 200
"""Cases between two lines about how far it has got."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What came of all faults of one kind."""

    kind: str
    faults: int
    recovered: int
    lost: int
    wrong: int
    hangs: int
    most_calls: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that did not come out as it must."""

    case: Case
    outcome: Outcome


def gathered(*, seed: int) -> list[Case]:
    """Return all faults there are, each once."""
    found: dict[str, Case] = {}
    for case in _all(seed):
        found.setdefault(case.key, case)
    return list(found.values())


def left_out() -> list[str]:
    """Return which kinds are not possible here, and why."""
    return [f"{kind}: {reason}" for kind, reason in places.left_out().items()]


def run(cases: Sequence[Case], *, jobs: int) -> list[Outcome]:
    """Run the cases; return what came of each, in their order.

    Raises:
        BrokenProcessPool: one of the processes has died.
    """
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        for outcome in pool.map(_one, cases, chunksize=16):
            outcomes.append(outcome)
            if len(outcomes) % _BEHIND == 0:
                print(f"{len(outcomes)} of {len(cases)}", file=sys.stderr, flush=True)
    return outcomes


def summed(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> list[Line]:
    """Return a line for each kind, in the order of the cases."""
    kinds = dict.fromkeys(case.kind for case in cases)
    lines: list[Line] = []
    for kind in kinds:
        of_it = [outcome for case, outcome in zip(cases, outcomes, strict=True) if case.kind == kind]
        verdicts = [outcome.verdict for outcome in of_it]
        lines.append(
            Line(
                kind=kind,
                faults=len(of_it),
                recovered=verdicts.count("recovered"),
                lost=verdicts.count("lost"),
                wrong=verdicts.count("wrong"),
                hangs=verdicts.count("hang"),
                most_calls=max(outcome.calls for outcome in of_it),
            )
        )
    return lines


def _all(seed: int) -> Iterator[Case]:
    yield from crashes.cases(seed=seed)
    yield from returned.cases()
    yield from network.cases()
    yield from places.cases()
    yield from clocks.cases()
    yield from damage.cases(seed=seed)
    yield from objects.cases()


def _one(case: Case) -> Outcome:
    with room() as folder:
        os.chdir("/")
        return tried(case, folder)
