"""What becomes of a process that is told to end: it saves at its next clean point, and ends.

```
first signal  while restoring   ends at once, with nothing to save
              while training    a save is asked for: what is held is written at once, else the next clean point is saved
              while closing     what is being saved is finished
grace over    no clean point    ends with the checkpoint that there is, and says so
              while closing     the mirror is left
grace over    while closing     the process ends with what is committed, whatever it waits for, and says so
a second time
```

Invariants: whoever takes `_turn` decides how the process ends, the training at a clean point or the watcher when the
grace is over, and never both; nothing that comes after the first signal waits without a bound, a restore and the end of
the process as little as the training; a signal handler waits for nothing that the code it has interrupted would have to do
or let go first, and raises, while training, only once the watcher has decided, or at the second Ctrl-C, and never while a
save is being begun.

What a handler does wait for: the disk, where it has what was held written (it puts the save on record), and whoever reads
standard error. The locks that it takes are held by nobody but a thread beside, for as long as `threading.Event` needs them.

Not promised: that a signal is heard while the main thread is inside of one call into C: Python calls handlers only after it.
One that was heard before ends such a call `LAST` seconds after the grace, from outside of Python's order, without `atexit`
and `finally`; but where the call keeps Python's lock (the GIL) no code of ours runs, and only SIGKILL is left. That a
library which swallows SystemExit is left before the next clean point. Of several trainings at once in one process, more
than the one that comes to a clean point first.
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
        self._last = 0.0
        """When nothing is waited for any more, what is being written included."""
        self._hurried = False
        """Whether a person has asked once more while the run was being given back."""
        self._is_bounded = False
        """Whether the end of this process has somebody who sees to it that it comes."""
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
        if self._hurried:
            return 0.0
        return max(self._until - time.monotonic(), 0.0) if self.told else None

    @contextmanager
    def restoring(self) -> Generator[None]:
        """Listen from here on. What comes before the training begins ends the process at once. Where that or anything
        else is raised, `remove` is still to be called."""
        self._turn, self._gone = (
            deque((True,)),
            False,
        )  # of a start that was refused there may be a second one
        self._settled.clear()
        self._phase = _Phase.RESTORING
        signals.listen(self._settings.signals, self._caught)
        yield
        if self.told:
            raise self.exit()  # something has swallowed it
        self._phase = _Phase.TRAINING

    def remove(self) -> None:
        """Give the signals back. May be called twice."""
        self._phase = _Phase.CLOSING
        self.claim()
        with self._watcher:
            self._gone = True
        lingers = self.told not in ("", "SIGINT")
        signals.forget(self._caught, linger=self._grace + LAST if lingers else 0.0)

    def closing(self) -> None:
        """The run is being given back: from here on a signal raises nothing, and only bounds what is waited for."""
        self._phase = _Phase.CLOSING
        self.claim()
        if self.told and not self._gone:
            self._bound()

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
        if threading.get_ident() != threading.main_thread().ident:
            yield  # where no signal raises anything
            return
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
        self.heard_from("another rank")  # where this one of several was not told, that one was
        if not self.claim():
            return
        self._bound()
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
        self.claim()
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
            self._caught_closing(first=first, again=number == signal.SIGINT and self._interrupts > 1)
            return
        if first:
            self._number = number
            if phase is _Phase.TRAINING:
                self._begin()
                return
            self._bound()
            if self._inside:
                self._put_off = True
            else:
                raise self.exit()
        elif (self._decided and not self._is_out) or (number == signal.SIGINT and self._interrupts > 1):
            if not self._inside:
                raise self._raised()
            self._put_off = True
            if self._interrupts > 2:
                self._hurry()

    def _caught_closing(self, *, first: bool, again: bool) -> None:
        if first:
            more = "; once more waits only a little longer" if self.told == "SIGINT" else ""
            self._say(f"{self.told}: finishes what is being saved, and ends{more}.")
            self._bound()
        elif again:
            self._hurry()

    def _hurry(self) -> None:
        if not self._hurried:
            # The mirror is left first: what is being written gets a little time of its own.
            self._last = min(self._last, time.monotonic() + LAST)
            self._hurried = True

    def _tell(self, who: str) -> None:
        if not self.told:
            self._until = time.monotonic() + self._grace
            self._last = self._until + max(self._grace, LAST)
            self.told = who

    def _begin(self) -> None:
        self._request = SaveRequest(self.note)
        with self.shielded():  # a second Ctrl-C in here would destroy the save that the first one has begun
            self._requests.ask(self._request)
        again = "; once more ends at once" if self.told == "SIGINT" else ""
        self._say(f"{self.told}: saves at the next clean point, and ends{again}.")
        self._beside(self._watch)  # without it the end comes at the next clean point, whenever that is

    @staticmethod
    def _beside(work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # no more threads to be had
            _thread.start_new_thread(work, ())

    def _bound(self) -> None:
        """From here on the process ends, or gives everything back, or is ended."""
        if not self._is_bounded:
            self._is_bounded = True
            self._beside(self._await_end)

    def _await_end(self) -> None:
        while not self._gone:
            time.sleep(_GLANCE)
            self._end_if_over()
        self._is_bounded = False

    def _end_if_over(self) -> None:
        """End the process from outside of Python's order, where what it waits for has not come."""
        if time.monotonic() < self._last:
            return
        with self._watcher:
            if not self._gone:
                late = "even so" if self._hurried else "within twice the grace"
                self._say(
                    f"{self.told}: what is being written or given back did not come to its end {late}: the process ends"
                    " with the checkpoints that there are."
                )
                os._exit(self._status)

    @property
    def _status(self) -> int:
        return self._settings.exit_code if self.told != "SIGINT" else 128 + signal.SIGINT

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
                self._end_if_over()
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
                os._exit(self._status)
            self._end_if_over()

    def _say(self, text: str) -> None:
        """Write to standard error below Python's own buffers, which the code under a handler may be filling."""
        with suppress(OSError):
            os.write(2, f"unbroken: {text}\n".encode(errors="replace"))
