"""What becomes of a process that is told to end: it saves at its next clean point, and ends.

```
first signal  while restoring   ends at once, with nothing to save
              while training    a save is asked for: what is held is written at once, else the next clean point is saved
              while closing     what is being saved is finished
grace over    no clean point    ends with the checkpoint that there is, and says so
```

Invariants: whoever takes `_turn` decides how the process ends, the training at a clean point or the watcher when the
grace is over, and never both; a signal handler waits for nothing, takes no lock and, while training, raises only once
the watcher has decided, or at the second Ctrl-C, and never inside a save.

Not promised: that a process ends by an exception while it is inside of one long call into C; `LAST` seconds after the
grace it is ended from outside of Python's order, without `atexit` and `finally`. That it ends at all where that call keeps
Python's lock (the GIL): no code of ours runs then, and only SIGKILL is left. That a library which swallows
SystemExit is left before the next clean point. Of several trainings at once in one process, more than the one that
comes to a clean point first.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import Enum

from unbroken.engine import signals
from unbroken.engine.requests import Requests, SaveRequest
from unbroken.engine.settings import Settings
from unbroken.engine.writer import BackgroundWriter
from unbroken.errors import Fenced, ReplicasDiffer, UnbrokenError

LAST = 5.0
"""Seconds that Python has to leave a call into C after the grace."""
LEAST = 1.0
"""Seconds that a clean point may always take: where nobody waits for long stretches, steps are still to be waited for."""
_GLANCE = 0.02


class Preempted(SystemExit):
    """The process was told to end, and what it has trained is saved as far as that could be. `code` is its exit
    status; `signal` what has told it."""

    def __init__(self, code: int, signal: str) -> None:
        super().__init__(code)
        self.signal = signal

    def __str__(self) -> str:
        return f"preempted by {self.signal}"


class _Phase(Enum):
    IDLE = "idle"
    RESTORING = "restoring"
    TRAINING = "training"
    CLOSING = "closing"


class Preemption:
    """The end by a signal of one engine. Of one with no signals it never hears of one."""

    def __init__(self, settings: Settings, requests: Requests, writer: BackgroundWriter) -> None:
        self.told = ""
        """What has told this process to end; empty if nothing has."""
        self._settings = settings
        self._grace = max(settings.grace, LEAST)
        """Seconds until the clean point has to come."""
        self._requests = requests
        self._writer = writer
        self._phase = _Phase.IDLE
        self._until = 0.0
        """When its grace is over."""
        self._number = 0
        self._request: SaveRequest | None = None
        self._turn = deque((True,))
        self._settled = threading.Event()
        """Set once, by the training, after it has taken its turn."""
        self._decided = False
        """Whether the watcher ends the process."""
        self._heard = False
        """Whether the training has been told that it does."""
        self._is_out = False
        """Whether what ends the process is on its way up."""
        self._inside = 0
        self._put_off = False
        """Whether something is to be raised as soon as the save that is being begun is begun."""
        self._interrupts = 0
        self._watcher = _thread.allocate_lock()
        self._gone = False

    @property
    def note(self) -> str:
        """Why the process ends, as the history and checkpoints tell it; empty if it does not."""
        if not self.told:
            return ""
        return f"{'interrupted' if self.told == 'SIGINT' else 'preempted'} by {self.told}"

    def left(self) -> float | None:
        """Return how many seconds of the grace are left; None if nothing has told this process to end."""
        return max(self._until - time.monotonic(), 0.0) if self.told else None

    @contextmanager
    def restoring(self) -> Generator[None]:
        """Listen from here on. What comes before the training begins ends the process at once."""
        self._phase = _Phase.RESTORING
        signals.listen(self._settings.signals, self._caught)
        try:
            yield
            self._phase = _Phase.TRAINING
        except BaseException:
            self.remove()
            raise
        if self.told:
            raise self.exit()  # something has swallowed it

    def remove(self) -> None:
        """Give the signals back. May be called twice."""
        self._phase = _Phase.CLOSING
        self.claim()
        with self._watcher:
            self._gone = True
        lingers = self.told not in ("", "SIGINT")
        signals.forget(self._caught, linger=self._grace + LAST if lingers else 0.0)

    def closing(self) -> None:
        """The run is being given back: from here on a signal is only noted."""
        self._phase = _Phase.CLOSING
        self.claim()

    def heard_from(self, who: str) -> None:
        """Another has heard of it, and ends the process: `who` is a signal of which a framework knows, or a rank."""
        self._tell(who)

    def claim(self) -> bool:
        """Take it upon the caller to end the process. False where the watcher has."""
        if self.told or self._phase is _Phase.CLOSING:
            with suppress(IndexError):
                self._turn.pop()
                self._settled.set()
        return self._settled.is_set()

    @property
    def _is_granted(self) -> bool:
        """Whether the save that the signal has asked for was begun."""
        return self._request is not None and self._request not in self._requests.pending()

    @contextmanager
    def shielded(self) -> Generator[None]:
        """Nothing is raised by a signal in here, but at the end."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if self._put_off and not self._inside:
                self._put_off = False
                raise self._raised()

    def finish(self, step: int, *, save: Callable[[], None], wait: Callable[[], None], needed: bool) -> None:
        """Have this step saved, unless a save of it is on its way, and wait until it is durable. A failure is said,
        and keeps no process from ending.

        Raises:
            Fenced, ReplicasDiffer: another process has taken over, or the ranks are no longer one training.
        """
        self.heard_from("rank 0")  # where this one of several was not told, that one was
        if not self.claim():
            return
        needed = needed and not self._is_granted
        lost: UnbrokenError | None = None
        for attempt in range(2):
            try:
                (save if needed or attempt else wait)()
            except (Fenced, ReplicasDiffer):
                raise
            except UnbrokenError as error:
                lost = error  # the first may be of a save before
            else:
                self._say(f"{self.told}: step {step:,} is saved; the same command goes on from there.")
                return
        self._say(
            f"{self.told}: step {step:,} could not be saved, and the run goes on from the one before: {lost}"
        )

    def leave(self, error: BaseException | None = None) -> None:
        """Raise what ends the process, if it was told to end. `error` is that of the training, which may well come of
        the same signal: workers that have died of it."""
        if (
            not self.told
            or self._is_out
            or isinstance(error, (SystemExit, KeyboardInterrupt, Fenced, ReplicasDiffer))
        ):
            return
        if error is not None:
            self._say(
                f"{self.told}: before it could be saved, the training ended by {type(error).__name__}: {error}"
            )
        raise self.exit() from error

    def exit(self) -> BaseException:
        """Return what ends the process, to be raised."""
        self._is_out = True
        return (
            KeyboardInterrupt() if self.told == "SIGINT" else Preempted(self._settings.exit_code, self.told)
        )

    def _raised(self) -> BaseException:
        self._is_out = True
        return KeyboardInterrupt() if self._interrupts > 1 else self.exit()

    def _caught(self, number: int) -> None:
        """A signal has come. Runs in the main thread, between any two steps of Python."""
        name = signal.Signals(number).name
        self._interrupts += number == signal.SIGINT
        first, phase = not self.told, self._phase
        self._tell(name)
        if phase in (_Phase.IDLE, _Phase.CLOSING):
            self._heard = True
            return
        if first:
            self._number = number
            if phase is _Phase.TRAINING:
                self._begin()
            elif self._inside:
                self._put_off = True
            else:
                raise self.exit()
        elif (self._decided and not self._is_out) or (number == signal.SIGINT and self._interrupts > 1):
            if self._inside:
                self._put_off = True
            else:
                self.claim()
                raise self._raised()

    def _tell(self, who: str) -> None:
        if not self.told:
            self._until = time.monotonic() + self._grace
            self.told = who

    def _begin(self) -> None:
        self._request = SaveRequest(self.note)
        self._requests.ask(self._request)
        again = "; once more ends at once" if self.told == "SIGINT" else ""
        self._say(f"{self.told}: saves at the next clean point, and ends{again}.")
        try:
            _thread.start_new_thread(self._watch, ())
        except RuntimeError:
            return  # no more threads to be had: the end comes at the next clean point, whenever that is

    def _watch(self) -> None:
        """End the process where the training does not: as soon as what was held is durable, or when the grace is over.

        A thread of the lowest kind, since `threading` takes locks that the code under a handler may have.
        """
        until = self._until
        handed = self._is_granted
        how = ""
        while not self._settled.wait(_GLANCE if handed else min(max(until - time.monotonic(), 0.0), 3600.0)):
            if handed and not self._writer.busy:
                handed = False
                if not self._writer.failed:
                    how = ": the copy that was held is saved; the same command goes on from there."
                    break
            over = time.monotonic() >= until
            if not handed and over and not self._inside:
                how = (
                    f" came {self._grace:g} seconds ago and there was no clean point since: the process ends with the"
                    " checkpoints that there are."
                )
                break
            if over:
                self._settled.wait(_GLANCE)
        try:
            self._turn.pop()
        except IndexError:
            return  # the training was first
        self._say(self.told + how)
        self._decided = True
        with self._watcher:
            if not self._gone:
                signal.pthread_kill(threading.main_thread().ident or 0, self._number)
        last = time.monotonic() + LAST
        while not (self._heard or self._is_out) and not self._gone:
            time.sleep(_GLANCE)
            if time.monotonic() >= last and not self._writer.busy:
                # Nothing else can end it: it hangs in a call into C.
                os._exit(self._settings.exit_code if self.told != "SIGINT" else 128 + signal.SIGINT)

    def _say(self, text: str) -> None:
        """Write to standard error below Python's own buffers, which the code under a handler may be filling."""
        with suppress(OSError):
            os.write(2, f"unbroken: {text}\n".encode(errors="replace"))
