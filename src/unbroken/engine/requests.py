"""Saves that are asked for, and the snapshot that is held for whoever asks: copied, and not written.

A save can be made at a clean point only, and the next one may be one long `train()` away. So the state is
copied before that begins. Who asks meanwhile, from any thread or from a signal handler, has this copy written
at once; the resumed run does again what came after it. Else it is dropped.

Invariants: whoever takes the snapshot has it alone, the training to drop it or the one who asks to write it; and
it is taken only for somebody. A request is there until a snapshot that was taken after it is in the writer's
hands. A failure to get it there is kept for the training.

Why a signal handler never waits for what it has interrupted: it may write only while something is held, and
something is held only while the training is outside the engine, since each of its calls drops that before anything
else. So what was interrupted is no code of ours that has a lock, such as the one of `Budget`, which
`Schedule.saved` takes. A lock around the snapshot itself would break this; one call of `list` or `deque` at a
time does not.

Not promised: that anything is held of several ranks, where one alone can save nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from unbroken.engine.dispatch import Taken
from unbroken.engine.schedule import Clock
from unbroken.errors import SaveFailed


@dataclass(frozen=True, slots=True, eq=False)
class SaveRequest:
    """A save that was asked for. Two with the same reason are two.

    `urgent`: it is for what is held, if anything is; else it waits for the next clean point.
    """

    reason: str
    urgent: bool = True


class Requests:
    """What was asked for and is not made yet, and place for one snapshot in waiting.

    `ask` is anybody's, all else the training's. `begin` has a snapshot written, for a reason; it is called in
    the thread of whoever asks.
    """

    def __init__(self, begin: Callable[[Taken, str], None], clock: Clock = time.monotonic) -> None:
        self._begin = begin
        self._clock = clock
        self._in_vain = 0.0
        self._asked: list[SaveRequest] = []
        self._held: deque[Taken] = deque(maxlen=1)
        self._settled = threading.Event()
        self._failure: Exception | None = None
        self.holding = False
        """Whether something was held and not released yet, taken or not."""

    @property
    def reason(self) -> str:
        """Why a save is asked for, by the first of the most urgent requests; empty if none is."""
        return _reason(self._asked.copy()) if self._asked else ""

    def pending(self) -> Sequence[SaveRequest]:
        """Return what is asked for by now: a snapshot that is taken after this grants it."""
        return self._asked.copy()

    def made(self, requests: Sequence[SaveRequest]) -> None:
        """Forget these. What was asked for meanwhile is another request, and stays."""
        for request in requests:
            with suppress(ValueError):  # granted by another snapshot at the same time
                self._asked.remove(request)

    def still_due(self, reason: str) -> None:
        """Have a save made at the next clean point, if none is asked for anyway."""
        if not self._asked:
            self._asked.append(SaveRequest(reason, urgent=False))

    def ask(self, request: SaveRequest) -> None:
        """Have a save made: of what is held, if it is urgent, else at the next clean point. Raises nothing."""
        self._asked.append(request)
        if request.urgent:
            self._write_held()

    def hold(self, taken: Taken) -> None:
        """Let `taken` wait for who asks; who has asked before gets it at once."""
        self._settled.clear()
        self._failure = None
        self.holding = True
        self._held.append(taken)
        self._write_held()

    def release(self) -> None:
        """Have nothing wait any more. Waits for one who has taken what was held to have handed it over: until
        then memory and writer are theirs. Raises what kept it from being handed over."""
        if not self.holding:
            return
        self.holding = False
        dropped = self._taken()
        if dropped is None:
            self._await_taker()
        else:
            self._in_vain += dropped.seconds

    def in_vain(self) -> float:
        """Return how long training has waited for nothing since this was asked before: for copies that were
        dropped, and for those who were handing one over."""
        seconds, self._in_vain = self._in_vain, 0.0
        return seconds

    def settle(self) -> None:
        """Wait for one who has taken what is held, if anybody has, and leave it there else. Raises as
        `release` does; each failure once."""
        if self.holding and not self._held:
            self._await_taker()

    def _await_taker(self) -> None:
        began = self._clock()
        self._settled.wait()
        self._in_vain += self._clock() - began
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _taken(self) -> Taken | None:
        """Return what waits, for the caller alone; None if there is nothing, or somebody was first."""
        try:
            return self._held.pop()
        except IndexError:
            return None

    def _write_held(self) -> None:
        asked = self._asked.copy()
        # Looked at first: what is taken for nobody could only be thrown away, and the next to ask needs it.
        taken = self._taken() if asked else None
        if taken is None:
            return
        failure: Exception | None = SaveFailed(
            f"The save of step {taken.step:,} was interrupted before it had begun.",
            hint="Checkpoints committed before it are intact.",
        )
        try:
            self._begin(taken, _reason(asked))
            failure = None
            self.made(asked)
        except Exception as error:  # noqa: BLE001 - for the training, which raises it in `release`
            failure = error
        finally:
            self._failure = failure
            self._settled.set()


def _reason(requests: Sequence[SaveRequest]) -> str:
    first = next((request for request in requests if request.urgent), None) or next(iter(requests), None)
    return "" if first is None else first.reason
