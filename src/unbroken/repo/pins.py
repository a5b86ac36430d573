"""Pins: commits that retention keeps although they would go, because somebody is about to read them.

The one thing in a run that another process than its writer may write. A pin is a request with an end: who
dies with one in its hand costs the run a checkpoint's room for a while, and nothing else.

Not promised: that a pinned commit is there. Retention may have looked just before the pin was written, so
who reads must be able to do without; and a pin that cannot be read holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from unbroken.errors import CorruptObject, ObjectMissing, StoreError, UnsupportedFormat
from unbroken.format import pin as pins
from unbroken.format.pin import Hold, Pin
from unbroken.repo import fencing
from unbroken.repo.process import current
from unbroken.repo.seal import seal, unseal
from unbroken.store.base import ByteStore
from unbroken.types import Sequence

LIFE_SECONDS = 600.0
"""How long a pin holds: enough to wait for a free worker, to build a training and to load a checkpoint."""


def hold(
    store: ByteStore,
    name: str,
    holds: Mapping[Sequence, float],
    *,
    job: str,
    reason: str,
    now: float,
) -> None:
    """Ask the run in `store` to keep these commits, each until the time beside it. Replaces the pin of this name.

    Raises:
        StoreError: it could not be written.
    """
    owner = current()
    record = Pin(
        job=job,
        **owner.as_owner(),
        time=now,
        holds=[Hold(sequence=sequence, until=until) for sequence, until in sorted(holds.items())],
        reason=reason,
    )
    store.put(pins.pin(name), seal(record))


def holds_of(store: ByteStore, name: str) -> dict[Sequence, float]:
    """Return what the pin of this name holds; nothing if there is none that can be read."""
    key = pins.pin(name)
    try:
        found = unseal(store.get(key), Pin, key=key)
    except (ObjectMissing, CorruptObject, UnsupportedFormat):
        return {}
    return {one.sequence: one.until for one in found.holds}


def release(store: ByteStore, name: str) -> None:
    """Hold on to nothing under this name any longer."""
    store.delete(pins.pin(name))


@contextmanager
def held(
    store: ByteStore, name: str, sequence: Sequence, *, job: str, reason: str
) -> Generator[None, None, None]:
    """Hold on to a commit while it is read. A run that cannot be written to is read without."""
    now = time.time()
    with suppress(StoreError):
        hold(store, name, {sequence: now + LIFE_SECONDS}, job=job, reason=reason, now=now)
    try:
        yield
    finally:
        with suppress(StoreError):  # it ends by itself
            release(store, name)


def pinned(store: ByteStore, *, now: float) -> dict[Sequence, str]:
    """Return which commits are held, each with a reason for people."""
    return {
        one.sequence: _reason(pin)
        for pin in _pins(store).values()
        if pin is not None
        for one in pin.holds
        if one.until > now
    }


def sweep(store: ByteStore, *, now: float, claim: fencing.Claim) -> None:
    """Delete the pins whose time is over, and those that cannot be read.

    Raises:
        Fenced: a later process has claimed the run; nothing is deleted from then on.
    """
    for key, pin in _pins(store).items():
        if pin is None or all(one.until <= now for one in pin.holds):
            fencing.check(store, claim)
            store.delete(key)


def _pins(store: ByteStore) -> dict[str, Pin | None]:
    found: dict[str, Pin | None] = {}
    for key in store.list(pins.PINS):
        try:
            found[key] = unseal(store.get(key), Pin, key=key)
        except ObjectMissing:
            continue  # released meanwhile
        except CorruptObject:
            found[key] = None
        except UnsupportedFormat:
            continue  # of a later version, which knows when it is over
    return found


def _reason(pin: Pin) -> str:
    return f"pinned: {pin.reason}" if pin.reason else f"pinned by {pin.job}"
