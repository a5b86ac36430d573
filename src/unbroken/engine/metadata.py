"""Turns a snapshot and its circumstances into the metadata that lies beside it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from unbroken.format.meta import ComponentCost, ComponentFidelity, Meta
from unbroken.format.records import HistoryRecord, Position
from unbroken.repo.process import Process
from unbroken.state.snapshot import Snapshot
from unbroken.types import Step

MOST_NOTES = 200
NOT_FINITE = "not_finite_at_start"
"""Counter that lists the places of weights that held NaN or infinity when the run began."""
MAX_OVERHEAD = "max_overhead"
"""Counter that says which share of the time saving may take, from 0 to 1; none where there is no such bound."""
TRACKERS = "trackers"
"""Counter that says which runs of trackers the training was logged to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """When, why and by whom a snapshot was taken."""

    job: str
    step: int
    segment: int
    position: Position
    reason: str
    time: float
    process: Process
    episodes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    fingerprint: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds_blocked: float = 0.0
    birth: str = ""
    inexact: Sequence[str] = ()
    max_overhead: float | None = None
    trackers: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """By the kind of tracker, which run of it the training logs to."""


def describe(snapshot: Snapshot, circumstances: Circumstances) -> Meta:
    """Return the metadata of weights that are all finite; see `inspected`."""
    about = circumstances
    counters = dict(snapshot.counters)
    counters["bytes"] = {name: component.nbytes for name, component in snapshot.components.items()}
    if about.max_overhead is not None:
        counters[MAX_OVERHEAD] = about.max_overhead
    if about.trackers:
        counters[TRACKERS] = {kind: dict(identity) for kind, identity in about.trackers.items()}
    notes = [f"{note.kind}: {note.place} ({note.detail})" for note in snapshot.notes[:MOST_NOTES]]
    if len(snapshot.notes) > MOST_NOTES:
        notes.append(f"and {len(snapshot.notes) - MOST_NOTES} notes more")
    # JSON has no NaN; a metric without a number cannot be compared and is only mentioned.
    metrics = {name: float(value) for name, value in about.metrics.items() if math.isfinite(value)}
    notes += [f"metric {name} was {about.metrics[name]}" for name in about.metrics if name not in metrics]
    return Meta(
        job=about.job,
        **about.process.as_owner(),
        time=about.time,
        step=Step(about.step),
        segment=about.segment,
        position=about.position,
        reason=about.reason,
        episodes=about.episodes,
        metrics=metrics,
        worker_status=_list(counters.pop("worker_status", ())),
        env_seeds=_list(counters.pop("env_seeds", ())),
        versions=dict(about.versions),
        fingerprint=dict(about.fingerprint),
        fidelity={
            name: ComponentFidelity(promise.fidelity, promise.reason)
            for name, promise in snapshot.promises.items()
        },
        seconds_blocked=about.seconds_blocked,
        birth=about.birth,
        inexact=list(about.inexact),
        bytes=sum(component.nbytes for component in snapshot.components.values()),
        cost={
            name: ComponentCost(seconds=snapshot.seconds.get(name, 0.0), captured=component.captured)
            for name, component in snapshot.components.items()
        },
        counters=counters,
        notes=notes,
    )


def inspected(meta: Meta, *, sick: Collection[str], sick_from_birth: Collection[str]) -> Meta:
    """Return the metadata with what was found in the weights. `sick` are the places of weights that hold
    NaN or infinity; of those that did so when the run began nobody can say that training spoiled them."""
    spoiled = sorted(set(sick) - set(sick_from_birth))
    counters = {**meta.counters, NOT_FINITE: sorted(sick_from_birth)} if sick_from_birth else meta.counters
    notes = [*meta.notes, *(f"not finite: {place}" for place in spoiled[:MOST_NOTES])]
    return msgspec.structs.replace(meta, good=not spoiled, counters=counters, notes=notes)


def not_finite_at_birth(meta: Meta, *, rank: int = 0) -> frozenset[str]:
    """Return which weights of a rank held NaN or infinity when the run began: each states its own. Of one that was
    not there yet it is what rank 0 states."""
    own = next((one for one in meta.worker_status if one.get("rank") == rank), None)
    said = (meta.counters if rank == 0 or own is None else own).get(NOT_FINITE, [])
    return frozenset(map(str, cast("list[object]", said)))


def _list(value: Any) -> list[Any]:
    return list(value)


def last_line(process: Process, job: str, step: int, reasons: Sequence[str], *, time: float) -> HistoryRecord:
    """Return the line of the history that says that a process ended in order, and why."""
    return HistoryRecord(
        event="end",
        job=job,
        **process.as_owner(),
        time=time,
        step=Step(step),
        reasons=list(reasons),
    )
