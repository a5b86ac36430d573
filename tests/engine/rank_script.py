"""One rank of a training with numpy alone, which dies, stops or goes wrong where it is told to.

`RANK=0 WORLD_SIZE=2 python rank_script.py ROOT '{"total": 30, ...}'`, see `Options`. What becomes of it is
told in lines of JSON on standard output, the state at its end beside the root, in `ROOT.<rank>.npz`.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import unbroken
from unbroken.distributed import world
from unbroken.errors import ReplicasDiffer, UnbrokenError
from unbroken.repo.rendezvous import Patience
from unbroken.store.local import LocalStore

ROWS = 400


@dataclass
class Options:
    """What this rank does beside training."""

    total: int = 30
    every: int = 5
    keep_last: int = 3
    sync_timeout: float = 60.0
    start_timeout: float = 60.0
    hurry: str = ""
    """While this file is there, time passes quickly for this rank where it waits, until it has told an error."""
    replicated: list[str] = field(default_factory=lambda: ["training_state"])
    strict: bool = False
    rate: float = 0.5
    further: int = 0
    """Steps of a second loop of the same script."""
    die: int = -1
    """Kill this process at the top of that step."""
    told: int = -1
    """Tell this process to end, in that step."""
    cold: str = ""
    """Part that is not brought back."""
    drift: int = -1
    """From this step on one weight of this rank is another in its last bit."""
    length: int = 6
    """Number of weights."""
    rows: int = ROWS
    """Number of rows of the buffer."""
    lacks: bool = False
    """This rank tracks no buffer."""
    stop: str = ""
    """Stop this process (SIGSTOP) before it writes an object whose key matches, of the n-th such key."""
    stop_number: int = 1
    tells: str = ""
    """Tell of each word to other ranks whose key matches, once it is written."""
    goes_on: bool = False
    """Train on after a save has failed."""
    wait: bool = False
    """Let each save finish before the next step, so that what comes back does not depend on the disk."""


class Buffer:
    """A rank's own replay buffer, with its own generator."""

    unbroken_ring = unbroken.Ring(arrays=("rows",), position="position", full="full")

    def __init__(self, seed: int, rows: int) -> None:
        self.rows = np.zeros((rows, 3))
        self.position = 0
        self.full = False
        self.generator = np.random.default_rng(seed)

    def add(self, row: Any) -> None:
        self.rows[self.position] = row
        self.position = (self.position + 1) % len(self.rows)
        self.full = self.full or self.position == 0


class Optimizer:
    """A setting and a state, the same on every rank."""

    def __init__(self, rate: float, length: int) -> None:
        self.rate = rate
        self.momentum = np.zeros(length)


class Clock:
    """That by which this rank waits for others. A test says when they have had enough time, not the machine's speed."""

    def __init__(self) -> None:
        self.hurry = ""
        self._ahead = 0.0

    def __call__(self) -> float:
        if self.hurry and os.path.exists(self.hurry):
            self._ahead += 5.0
        return time.monotonic() + self._ahead


CLOCK = Clock()


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def stop_before(pattern: str, number: int) -> None:
    """Make this process stop before it writes the n-th object whose key matches."""
    seen = 0

    def look(key: str) -> None:
        nonlocal seen
        if re.search(pattern, key):
            seen += 1
            if seen == number:
                # To this thread, which goes no further; one to the process may reach another thread first.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: LocalStore, key: str, data: Any) -> Any:
            look(key)
            return original(self, key, data)

        return write

    put_all = LocalStore.put_all

    def put_several(self: LocalStore, items: Iterable[tuple[str, Any]]) -> None:
        def each() -> Iterator[tuple[str, Any]]:
            for key, content in items:
                look(key)
                yield key, content

        put_all(self, each())

    for name in ("put_if_absent", "say"):
        setattr(LocalStore, name, watched(getattr(LocalStore, name)))
    LocalStore.put_all = put_several  # type: ignore[method-assign]


def tell_of_words(pattern: str) -> None:
    """Tell of each word to other ranks whose key matches, once it is written."""
    original = LocalStore.say

    def write(self: LocalStore, key: str, data: bytes) -> bool:
        written = original(self, key, data)
        if re.search(pattern, key):
            say(written=key)
        return written

    LocalStore.say = write  # type: ignore[method-assign]


def tell(error: UnbrokenError) -> None:
    CLOCK.hurry = ""
    say(
        error=type(error).__name__,
        message=str(error),
        ranks=list(getattr(error, "ranks", ())),
        differences=list(getattr(error, "differences", ())) if isinstance(error, ReplicasDiffer) else [],
    )


def main() -> None:
    root, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    me = world(
        replicated=options.replicated,
        sync_timeout=options.sync_timeout,
        start_timeout=options.start_timeout,
    )
    if options.hurry:
        CLOCK.hurry = options.hurry
        Patience.for_store = lambda _store: Patience(clock=CLOCK)  # type: ignore[method-assign, assignment]
    if options.stop:
        stop_before(options.stop, options.stop_number)
    if options.tells:
        tell_of_words(options.tells)
    np.random.seed(me.rank)  # noqa: NPY002 - a global generator, another on each rank
    random.seed(me.rank)
    say(here=me.rank)
    weights = np.ones(options.length)
    shared = np.random.default_rng(7)
    optimizer = Optimizer(options.rate, options.length)
    buffer = Buffer(100 + me.rank, options.rows)
    run = unbroken.Run(
        root, every=options.every, keep_last=options.keep_last, strict=options.strict, world=me, quiet=True
    )
    run.track(weights=weights, shared=shared, optimizer=optimizer)
    if not options.lacks:
        run.track(buffer=buffer)
    run.vars.seen = 0.0
    try:
        for total in (options.total, *([options.further] if options.further else [])):
            train(run, options, total, weights, shared, optimizer, buffer)
    except UnbrokenError as error:
        tell(error)
        raise SystemExit(3) from error
    np.savez(
        f"{root}.{me.rank}.npz",
        weights=weights,
        momentum=optimizer.momentum,
        rows=buffer.rows,
        own=buffer.generator.random(3),
        shared=shared.random(3),
        numpy=np.random.rand(3),  # noqa: NPY002
        python=[random.random()],
        seen=run.vars.seen,
    )


def leave_cold(
    options: Options,
    run: unbroken.Run,
    weights: Any,
    shared: np.random.Generator,
    optimizer: Optimizer,
    buffer: Buffer,
) -> None:
    """Put one part back to what it was when this process began."""
    rank = int(os.environ["RANK"])
    if options.cold == "buffer":
        buffer.rows[:] = 0
    elif options.cold == "generator":
        buffer.generator = np.random.default_rng(100 + rank)
    elif options.cold == "momentum":
        optimizer.momentum[:] = 0
    elif options.cold == "weights":
        weights[:] = 1
    elif options.cold == "shared":
        shared.bit_generator.state = np.random.default_rng(7).bit_generator.state
    elif options.cold == "numpy":
        np.random.seed(rank)  # noqa: NPY002
    elif options.cold == "python":
        random.seed(rank)
    elif options.cold == "vars":
        run.vars.seen = 0.0


def train(
    run: unbroken.Run,
    options: Options,
    total: int,
    weights: Any,
    shared: np.random.Generator,
    optimizer: Optimizer,
    buffer: Buffer,
) -> None:
    steps = run.steps(total)
    began = False
    while True:
        try:
            step = next(steps, None)
        except UnbrokenError as error:
            if not options.goes_on or run.report is None:
                raise
            tell(error)
            continue
        report = run.report
        assert report is not None
        if not began:
            began = True
            say(
                start=report.step, tier=report.tier.value, finished=report.finished,
                changes=list(report.changes), warnings=list(report.warnings),
                promises={name: promise.fidelity.value for name, promise in report.promises.items()},
            )  # fmt: skip
            leave_cold(options, run, weights, shared, optimizer, buffer)
        if step is None:
            return
        if options.wait:
            try:
                run.wait()
            except UnbrokenError as error:
                if not options.goes_on:
                    raise
                tell(error)
        if step == options.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == options.told:
            os.kill(os.getpid(), signal.SIGTERM)
        row = buffer.generator.normal(size=3) + np.random.rand() + random.random()  # noqa: NPY002
        buffer.add(row)
        optimizer.momentum += optimizer.rate * shared.normal(size=options.length)
        weights += optimizer.momentum
        if step == options.drift:
            weights[2] = np.nextafter(weights[2], np.inf)
        run.vars.seen += step


main()
