"""Pins: a commit that retention keeps although it would go, because somebody is about to read it.

The one thing in a run that another process than its writer may write. A pin is a request with an end: who
dies with one in its hand costs the run a checkpoint's room for a while, and nothing else.

Not promised: that a pinned commit is there. Retention may have looked just before the pin was written, so
who reads must be able to do without; and a pin that cannot be read holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from unbroken.errors import CorruptObject, ObjectMissing, StoreError, UnsupportedFormat
from unbroken.format import pin as pins
from unbroken.format.pin import Pin
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
    sequence: Sequence,
    *,
    job: str,
    reason: str,
    seconds: float = LIFE_SECONDS,
    now: float | None = None,
) -> None:
    """Ask the run in `store` to keep a commit for so many seconds. A pin of this name is replaced.

    Raises:
        StoreError: it could not be written.
    """
    now = time.time() if now is None else now
    owner = current()
    record = Pin(
        job=job,
        pid=owner.pid,
        process_start=owner.start,
        host=owner.host,
        boot_id=owner.boot_id,
        time=now,
        sequence=sequence,
        until=now + seconds,
        reason=reason,
    )
    store.put(pins.pin(name), seal(record))


def release(store: ByteStore, name: str) -> None:
    """Hold on to nothing under this name any longer."""
    store.delete(pins.pin(name))


@contextmanager
def held(
    store: ByteStore, name: str, sequence: Sequence, *, job: str, reason: str
) -> Generator[None, None, None]:
    """Hold on to a commit while it is read. A run that cannot be written to is read without."""
    with suppress(StoreError):
        hold(store, name, sequence, job=job, reason=reason)
    try:
        yield
    finally:
        with suppress(StoreError):  # it ends by itself
            release(store, name)


def pinned(store: ByteStore, *, now: float) -> dict[Sequence, str]:
    """Return which commits are held, each with a reason for people."""
    return {
        pin.sequence: _reason(pin) for pin in _pins(store).values() if pin is not None and pin.until > now
    }


def sweep(store: ByteStore, *, now: float, claim: fencing.Claim) -> None:
    """Delete the pins whose time is over, and those that cannot be read.

    Raises:
        Fenced: a later process has claimed the run; nothing is deleted from then on.
    """
    for key, pin in _pins(store).items():
        if pin is None or pin.until <= now:
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
