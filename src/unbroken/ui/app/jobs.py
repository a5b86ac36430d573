"""Work that takes longer than a page may: it runs in threads, says how far it is, and can be stopped.

Invariants: at most `TOGETHER` run at a time, since each may read a whole run; the same work is not done twice at once; what
is over is kept until `KEPT` others have ended. Nothing of it outlives the server.

Not promised: that work stops at once. It stops where it reads next.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from unbroken.errors import UnbrokenError
from unbroken.ui.app.bugs import as_told

TOGETHER = 2
KEPT = 50
WAITING = 20
"""More than so many jobs are not taken on."""

State: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]


class Cancelled(BaseException):
    """The work was told to stop. No error of ours, and no `Exception`: those are taken for damage on the way."""


class TooMany(Exception):
    """No more work is taken on for now. An answer to who asks, and no error of a run: it stands outside of `UnbrokenError`."""


@dataclass(slots=True, eq=False)
class Job:
    """One piece of work. Its fields are written by one thread, and read by any.

    `done` of `total` parts are finished; 0 of 0 where nobody knows. `kind` is what pages call it, `run` where it belongs,
    `page` where what comes of it is shown, if it has a page of its own.
    """

    id: str
    kind: str
    run: str
    title: str
    started: float
    state: State = "waiting"
    done: int = 0
    total: int = 0
    words: str = ""
    read: int = 0
    result: object = None
    problem: str = ""
    hint: str = ""
    ended: float | None = None
    key: tuple[object, ...] = ()
    page: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)

    def seen(self) -> Job:
        """Return it as it is now: what is shown of it, while it goes on, is of one moment."""
        ended = self.ended  # before all else: what has ended does not change any more
        return replace(self, ended=ended)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.ended is not None

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, and has not yet."""
        return self._stop.is_set() and not self.is_over

    def cancel(self) -> None:
        """Tell it to stop."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long; return whether it is over."""
        return self._over.wait(seconds)

    def end(self, time: float) -> None:
        """Say that nothing more comes of it."""
        self.ended = time
        self._over.set()

    def look(self, nbytes: int = 0) -> None:
        """Count bytes that were read.

        Raises:
            Cancelled: it is to stop.
        """
        self.read += nbytes
        if self._stop.is_set():
            raise Cancelled

    def told(self, done: int, total: int, words: str = "") -> None:
        """Say how far it is.

        Raises:
            Cancelled: it is to stop.
        """
        self.done, self.total, self.words = done, total, words
        self.look()


Work: TypeAlias = "Callable[[Job], object]"


class Jobs:
    """All work of one server."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._pool = ThreadPoolExecutor(TOGETHER, "unbroken-job")

    def start(
        self, kind: str, run: str, title: str, work: Work, *, key: tuple[object, ...] = (), page: str = ""
    ) -> Job:
        """Have work done, or return the job that does the same already. `key` tells one work from another of its kind.

        Raises:
            TooMany: too many others wait.
        """
        with self._lock:
            for job in self._jobs.values():
                if (
                    (job.kind, job.run, job.key) == (kind, run, key)
                    and not job.is_over
                    and not job.is_stopping
                ):
                    return job
            if sum(not job.is_over for job in self._jobs.values()) >= WAITING:
                raise TooMany
            job = Job(secrets.token_hex(8), kind, run, title, self._clock(), key=key, page=page)
            self._jobs[job.id] = job
            over = [one.id for one in self._jobs.values() if one.is_over]
            for name in over[: max(0, len(over) - KEPT)]:
                del self._jobs[name]
        self._pool.submit(self._carry_out, job, work)
        return job

    def get(self, name: str) -> Job | None:
        """Return a job by its id."""
        with self._lock:
            return self._jobs.get(name)

    def of(self, run: str) -> list[Job]:
        """Return the jobs of a run, the newest first."""
        with self._lock:
            return [job for job in reversed(self._jobs.values()) if job.run == run]

    def latest(self, kind: str, run: str, key: tuple[object, ...] | None = None) -> Job | None:
        """Return the newest job of a kind, and of this key if one is given."""
        for job in self.of(run):
            if job.kind == kind and (key is None or job.key == key):
                return job
        return None

    def close(self) -> None:
        """Stop everything, and wait until it has stopped."""
        with self._lock:
            for job in self._jobs.values():
                job.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _carry_out(self, job: Job, work: Work) -> None:
        try:
            job.look()
            job.state = "running"
            job.result = work(job)
            job.state = "done"
        except Cancelled:
            job.state = "cancelled"
        except UnbrokenError as error:
            _failed(job, error)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            job.problem, job.state = f"{place}{error.strerror or error}.", "failed"
        except Exception as error:  # noqa: BLE001 - a thread that dies in silence would leave a page that waits for ever
            _failed(job, error)
        finally:
            job.end(self._clock())


def _failed(job: Job, error: Exception) -> None:
    told = as_told(error, f"{job.title}: this work could not be done.")
    job.problem, job.hint, job.state = _whole(told), told.hint, "failed"


def _whole(error: UnbrokenError) -> str:
    """Return what an error says without its hint, with the lines that belong to it."""
    return str(error).removesuffix(error.hint).rstrip()
