"""``meta.json``: what a person wants to know of a checkpoint. Nothing is restored from it."""

from __future__ import annotations

from typing import Any

import msgspec

from unbroken.format import wire
from unbroken.format.records import BirthField, Count, Owner, Position, StepField
from unbroken.types import Fidelity


class ComponentFidelity(msgspec.Struct, frozen=True):
    """What one component promises after a restore; `reason` where it is not exact."""

    fidelity: Fidelity
    reason: str = ""


class ComponentCost(msgspec.Struct, frozen=True, kw_only=True):
    """What saving one component cost. Bytes of arrays are uncompressed, unless it is said otherwise.

    `new` and `written` are None where the one who wrote the checkpoint did not count them.
    """

    seconds: float = 0.0
    """How long training stood still for it: it was walked, and what changes was copied."""
    captured: Count = 0
    """Bytes of arrays that were captured. The others stand in an earlier checkpoint, or did not change."""
    new: Count | None = None
    """Bytes that lay in the run nowhere yet."""
    written: Count | None = None
    """Bytes that were written for it: the new ones as they are stored, compressed, and its document."""


class Meta(Owner, frozen=True, kw_only=True, tag="meta"):
    """The metadata of one checkpoint."""

    step: StepField
    segment: Count = 0
    position: Position = "step"
    reason: str = ""
    episodes: Count = 0
    metrics: dict[str, float] = {}
    worker_status: list[dict[str, Any]] = []
    """One entry a worker, by its index."""
    env_seeds: list[int | None] = []
    """One entry an environment, by its index."""
    versions: dict[str, str] = {}
    fingerprint: dict[str, Any] = {}
    """What can change the low bits of a result: instruction set, thread counts, library versions."""
    fidelity: dict[str, ComponentFidelity] = {}
    good: bool = True
    """False: NaN or infinity in the weights. An automatic resume does not take such a checkpoint."""
    seconds_blocked: float = 0.0
    bytes: Count = 0
    """Bytes in blobs, uncompressed, shared ones included."""
    cost: dict[str, ComponentCost] = {}
    """By component. What of `seconds_blocked` is not in it went into what is done for all of them together."""
    birth: BirthField = ""
    """The birth document that the settings in this checkpoint go with, as `RunWriter.write_birth` named it."""
    inexact: list[str] = []
    """What has set this run apart from an undisturbed one since it began, in the order in which it came."""
    counters: dict[str, Any] = {}
    notes: list[str] = []


def encode(meta: Meta) -> bytes:
    """Return the bytes of ``meta.json``."""
    return wire.encode(meta)


def decode(data: bytes, *, key: str = "meta.json") -> Meta:
    """Return the metadata; only `CorruptObject` and `UnsupportedFormat` are raised."""
    return wire.decode(data, Meta, key=key)
