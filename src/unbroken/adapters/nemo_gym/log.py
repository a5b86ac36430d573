"""An append-only file of sealed lines that many waiters make durable together.

A line is in the hands of the operating system when `append` returns: the death of the process does not take it. It
survives a power loss once `durable` or `flush` has returned. One thread syncs the file for all who wait; it begins with the first who
does, and lines for which nobody waits go with the next sync, or with `close`.

Invariant: at every moment the file `log` is a whole log, old or new, but for a torn last line, which is trimmed when it is
opened. Files beside it: `log.previous`, the former generation; `lock`, which names the process that has it.

Not promised: exclusion between hosts whose file system has no locks (said in `notes`), and that lines which a failed
sync has lost are noticed by a process that reads them from memory afterwards. That is why a log of which a sync
or a write has failed takes nothing more.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from unbroken.adapters.nemo_gym.exclusive import Exclusive
from unbroken.adapters.nemo_gym.frames import Damaged, Frames, Line, Scanned, reader
from unbroken.errors import ConfigError, CorruptObject, StoreError, Untrusted
from unbroken.store.directories import Directories
from unbroken.store.failure import failure
from unbroken.store.system import System, set_mode, sync_directory, write_all

__all__ = ["Damaged", "Line", "Log"]

LOG = "log"
PREVIOUS = "log.previous"
_NEW = "log.new"
_LINK = "log.link"

_APPENDED = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATED = _APPENDED | os.O_CREAT | os.O_EXCL
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_JOINED = 1 << 16
"""Payloads up to this are copied behind their header, for one call instead of two."""
_COPY = 1 << 20

_Waiter: TypeAlias = "tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]"


class Log:
    """A log that this process has to itself. Safe for several threads; `open` makes it."""

    def __init__(
        self, directory: Path, frames: Frames, *, sync: bool, system: System, at: int, lock: Exclusive
    ) -> None:
        self._directory = directory
        self._frames = frames
        self._sync = sync
        self._system = system
        self._at = at
        self._lock = lock
        self._file = -1
        self._id = b""
        self._number = 0
        self._size = 0
        self._has_names = True
        """Whether the file system counts the names of a file."""
        self._pid = os.getpid()
        self._appended = 0
        self._durable = 0
        self._failed: StoreError | None = None
        self._closed = False
        self._state = threading.Condition()
        """Guards all of the above."""
        self._commit = threading.Lock()
        """Held while the file is being synced or replaced. Taken before `_state`, never after."""
        self._waiters: list[_Waiter] = []
        self._later: list[Line] | None = None
        """What was appended since a rewrite began that does not keep others from it."""
        self._thread: threading.Thread | None = None
        self.lines: list[Line] = []
        self.notes: list[str] = []
        self.damaged: list[Damaged] = []

    @classmethod
    def open(cls, directory: Path, *, key: bytes, sync: bool = True, system: System | None = None) -> Log:
        """Open the log in `directory`, which is made if it is not there, and read it.

        Without `sync` nothing waits for the disk: a power loss may take lines, the death of the process does not.

        Raises:
            RunBusy: another live process, or this one, has it.
            Untrusted: it was written with another key.
            CorruptObject: not one line of it can be read.
            StoreError: it cannot be read or written. In all these cases it is as it was.
        """
        system = system or System()
        path = Path(os.path.abspath(directory))
        try:
            at = Directories(path, mode=0o700, system=system).make("")
        except OSError as error:
            raise failure(error, doing="making", path=path, key=LOG) from error
        try:
            lock = Exclusive.take(path / "lock", what=f"The log in {path}")
        except BaseException:
            os.close(at)
            raise
        log = cls(path, Frames(key), sync=sync, system=system, at=at, lock=lock)
        try:
            if not lock.is_locked:
                log.notes.append("the file system has no locks: a second process would not be noticed")
            with log._failures("opening"):
                log._begin()
                log._has_names = os.fstat(log._file).st_nlink > 0
        except BaseException:
            log._release()
            raise
        return log

    @property
    def size(self) -> int:
        """Bytes of the present file."""
        return self._size

    def append(self, label: str, payload: bytes) -> int:
        """Write a line at the end; return the ticket with which to wait until it is durable.

        Raises:
            StoreError: it was not written. The log takes nothing more.
            ConfigError: it is too long for a line; nothing was done.
        """
        self._check_process()
        with self._state:
            self._check()
            head = self._frames.head(self._id, self._number, label, payload)
            try:
                if len(payload) <= _JOINED:
                    write_all(self._system, self._file, head + payload)
                else:
                    write_all(self._system, self._file, head)
                    write_all(self._system, self._file, payload)
            except BaseException as error:
                # A part of a line may be there. What cannot be taken back now is trimmed as torn by the next `open`.
                with suppress(OSError):
                    os.ftruncate(self._file, self._size)
                self._stop(self._error(error, "writing"))
                if isinstance(error, OSError):
                    self._check()
                raise
            self._size += len(head) + len(payload)
            self._number += 1
            self._appended += 1
            if self._later is not None:
                self._later.append(Line(label, payload))
            return self._appended

    async def durable(self, ticket: int) -> None:
        """Wait until the line of this ticket, and all before it, survive a power loss.

        Raises:
            StoreError: that is not so and will not be. The log takes nothing more.
        """
        self._check_process()
        with self._state:
            if ticket <= self._durable:
                return
            self._check()
            if ticket > self._appended:
                raise ConfigError(
                    f"{ticket} is no ticket of this log.", hint="Wait for what `append` returned."
                )
            if not self._sync:
                return
            if self._thread is None:
                # Only now: a thread that begins with the log would be missing in a server that forks its workers.
                thread = threading.Thread(target=self._work, name="unbroken-log", daemon=True)
                thread.start()
                self._thread = thread
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((ticket, loop, future))
            self._state.notify_all()
        await future

    def flush(self) -> None:
        """Return when everything that was appended is durable.

        Raises:
            StoreError: that is not so and will not be. The log takes nothing more.
        """
        self._check_process()
        with self._state:
            self._check()
        self._sync_all()
        with self._state:
            self._check()

    def rewrite(self, lines: Iterable[Line]) -> None:
        """Put a new log of these lines in the place of this one, durably; this one is `previous()` from now on.

        Blocks `append` meanwhile. Tickets of earlier lines count as durable afterwards: what is kept of them is.

        Raises:
            StoreError: it did not work, and the log is as it was; only if that cannot be known it takes nothing more.
            ConfigError: a line is too long; the log is as it was.
        """
        self._check_process()
        with self._commit, self._state:
            self._check()
            with self._failures("rewriting"):
                self._replace(lines)
            self._settle(self._appended)

    async def rewrite_aside(self, lines: Iterable[Line]) -> None:
        """Like `rewrite`, in a thread: what is appended meanwhile is not held up, and is in the new log behind `lines`.

        These are read before anything else can run in the caller's loop, and stand for all that was appended until then.

        Raises:
            StoreError, ConfigError: as `rewrite`; or the log is being rewritten already.
        """
        self._check_process()
        every = list(lines)
        with self._state:
            self._check()
            if self._later is not None:
                raise ConfigError("The log is being rewritten already.", hint="Wait until that is done.")
            self._later = []
        await asyncio.to_thread(self._rewrite_aside, every)

    def _rewrite_aside(self, lines: Iterable[Line]) -> None:
        try:
            with self._commit, self._failures("rewriting"):
                self._replace(lines, catch_up=True)
        finally:
            with self._state:
                self._later = None

    def previous(self) -> list[Line]:
        """Return the intact lines of the generation before the last `rewrite`; none if there is none."""
        self._check_process()
        with self._state, self._failures("reading"):
            self._check()
            try:
                file = self._system.open(PREVIOUS, _READ, at=self._at)
            except FileNotFoundError:
                return []
            try:
                return self._frames.scan(reader(file), os.fstat(file).st_size).lines
            finally:
                os.close(file)

    def forget(self) -> None:
        """Free what was read when the log was opened."""
        self.lines = []

    def close(self) -> None:
        """Make everything durable and give the log back. Does nothing when called again, or in a forked child.

        Raises:
            StoreError: it was given back, but not everything is durable.
        """
        if self._closed or self._pid != os.getpid():
            return
        with self._state:
            self._closed = True  # first: a line that came in during the last sync would be durable for nobody
            self._state.notify_all()
        self._sync_all()
        if self._thread is not None:
            self._thread.join()
        self._release()
        if self._failed is not None:
            raise _again(self._failed) from self._failed

    # How it begins.

    def _begin(self) -> None:
        for name in (_NEW, _LINK):
            with suppress(FileNotFoundError):
                self._system.unlink(name, at=self._at)  # of a rewrite that was cut short
        try:
            self._file = self._system.open(LOG, _APPENDED, at=self._at)
        except FileNotFoundError:
            if os.path.lexists(self._directory / PREVIOUS):
                self.notes.append("the log was gone; its previous generation is there")
            self._create()
            return
        size = os.fstat(self._file).st_size
        found = self._frames.scan(reader(self._file), size)
        self._check_usable(found, size)
        if found.end < size:
            os.ftruncate(self._file, found.end)
            self.notes.append(f"a torn last line of {size - found.end} bytes was trimmed")
        # Lines and name may be in memory only: whoever wrote them may have died before its sync. What is built on
        # them must not outlive them.
        self._sync_file(self._file)
        self._sync_directory()
        self.lines, self.damaged = found.lines, found.damaged
        self.notes += found.notes
        self._id, self._number, self._size = found.log, found.number, found.end

    def _check_usable(self, found: Scanned, size: int) -> None:
        if found.intact:
            return
        path = self._directory / LOG
        if found.foreign:
            raise Untrusted(
                f"The log {path} was written with another key, and nothing of it was read.",
                hint="Set UNBROKEN_KEY to the key of its writer, or choose another directory.",
            )
        raise CorruptObject(
            f"Not one line of {path} ({size:,} bytes) can be read.",
            hint="Restore the file from a copy, or move it away: the server then begins with the last checkpoint.",
            key=LOG,
        )

    def _create(self) -> None:
        self._id = os.urandom(8)
        self._file, self._size, self._number = self._written(self._id, ())
        # The file before its name: else a power loss leaves an empty file, and nobody knows whether it was one.
        self._system.replace(_NEW, LOG, at=self._at)
        self._sync_directory()

    # How it is replaced.

    def _replace(self, lines: Iterable[Line], *, catch_up: bool = False) -> None:
        # Another id: lines of the former generation are none of this one.
        log = os.urandom(8)
        try:
            # 1. The new file, durable, under a name that nobody reads.
            file, size, number = self._written(log, lines)
            try:
                if not catch_up:
                    self._take_place(file, size, number, log)
                    return
                # Most of what came meanwhile while more may come, so that little is left for the moment when none may.
                size, number = self._caught_up(file, size, number, log)
                with self._state:
                    self._check()
                    size, number = self._caught_up(file, size, number, log)
                    self._take_place(file, size, number, log)
                    self._settle(self._appended)
            except BaseException:
                if self._file != file:
                    os.close(file)
                raise
        except BaseException:
            for name in (_NEW, _LINK):
                with suppress(OSError):
                    self._system.unlink(name, at=self._at)
            raise

    def _take_place(self, file: int, size: int, number: int, log: bytes) -> None:
        # 2. The present file gets a second name, so that it is never without one.
        self._keep()
        # Durable before 3: else a power loss could leave the new log and nothing of the former.
        self._sync_directory()
        # 3. The new file takes the first name.
        self._system.replace(_NEW, LOG, at=self._at)
        os.close(self._file)
        self._file, self._size, self._number, self._id = file, size, number, log
        try:
            self._sync_directory()
        except OSError as error:
            # Which of the two files bears the name after a power loss is open, and lines would go to one of them only.
            self._stop(self._error(error, "rewriting"))
            raise

    def _caught_up(self, file: int, size: int, number: int, log: bytes) -> tuple[int, int]:
        """Write what was appended since this was asked last to a new file as well, durably; return its size and next number."""
        with self._state:
            later, self._later = self._later or [], []
        size, number = self._write_lines(file, size, number, log, later)
        if later:
            self._sync_file(file)
        return size, number

    def _written(self, log: bytes, lines: Iterable[Line]) -> tuple[int, int, int]:
        """Write a whole log to a file, durably; return the file, its size and the number of its next line."""
        file = self._system.open(_NEW, _CREATED, 0o600, at=self._at)
        try:
            set_mode(self._system, file, 0o600)
            first = self._frames.first(log)
            write_all(self._system, file, first)
            size, number = self._write_lines(file, len(first), 1, log, lines)
            self._sync_file(file)
        except BaseException:
            os.close(file)
            with suppress(OSError):
                self._system.unlink(_NEW, at=self._at)
            raise
        return file, size, number

    def _write_lines(
        self, file: int, size: int, number: int, log: bytes, lines: Iterable[Line]
    ) -> tuple[int, int]:
        for line in lines:
            head = self._frames.head(log, number, line.label, line.payload)
            write_all(self._system, file, head)
            write_all(self._system, file, line.payload)
            size += len(head) + len(line.payload)
            number += 1
        return size, number

    def _keep(self) -> None:
        """Give the present file the name of the previous generation."""
        try:
            self._system.link(LOG, _LINK, at=self._at)
        except OSError:  # a file system without links
            self._copy()
        self._system.replace(_LINK, PREVIOUS, at=self._at)
        # If the name was given before, by a process that died here, then renaming one name of a file to another of the
        # same does nothing.
        with suppress(FileNotFoundError):
            self._system.unlink(_LINK, at=self._at)

    def _copy(self) -> None:
        file = self._system.open(_LINK, _CREATED, 0o600, at=self._at)
        try:
            offset = 0
            while part := os.pread(self._file, _COPY, offset):
                write_all(self._system, file, part)
                offset += len(part)
            self._sync_file(file)
        finally:
            os.close(file)

    # How it becomes durable.

    def _work(self) -> None:
        while True:
            with self._state:
                while not self._waiters and not self._closed:
                    self._state.wait()
                if self._closed:
                    return
            self._sync_all()

    def _sync_all(self) -> None:
        with self._commit:
            with self._state:
                target, file = self._appended, self._file
                if self._failed is not None or target == self._durable:
                    return
            try:
                self._sync_file(file)
                self._check_there(file)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                with self._state:
                    self._stop(self._error(error, "syncing"))
                return
            with self._state:
                self._settle(target)

    def _settle(self, target: int) -> None:
        """Tell those who wait that everything up to `target` is durable."""
        self._durable = target
        ready = [waiter for waiter in self._waiters if waiter[0] <= target]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > target]
        _wake(ready, None)

    def _stop(self, error: StoreError) -> None:
        """Take nothing more: what was appended and is not durable may be lost."""
        self._failed = self._failed or error
        waiters, self._waiters = self._waiters, []
        _wake(waiters, self._failed)

    def _sync_file(self, file: int) -> None:
        if self._sync:
            self._system.fsync(file)

    def _sync_directory(self) -> None:
        if self._sync:
            sync_directory(self._system, self._at)

    # How it fails.

    def _check_process(self) -> None:
        """Raise in a forked child. Before any lock is taken: one that the parent held then is held in the child for ever."""
        if self._pid != os.getpid():
            raise StoreError(
                f"The log in {self._directory} belongs to process {self._pid}, and this is a fork of it.",
                hint="Open logs in the process that writes them.",
                key=LOG,
            )

    def _check(self) -> None:
        """Raise unless the log can be used."""
        if self._failed is not None:
            raise _again(self._failed) from self._failed
        if self._closed:
            raise StoreError(f"The log in {self._directory} is closed.", hint="Open it again.", key=LOG)

    def _check_there(self, file: int) -> None:
        """Raise if the file has no name any more: it goes with this process, however well it was synced."""
        if self._has_names and os.fstat(file).st_nlink == 0:
            raise StoreError(
                f"The log {self._directory / LOG} was deleted while this process wrote it. The log takes nothing more.",
                hint="Start this server again, and restore the last checkpoint: what it answered since is not kept.",
                key=LOG,
            )

    def _error(self, error: BaseException, doing: str) -> StoreError:
        path = self._directory / LOG
        if isinstance(error, StoreError):
            return error
        if not isinstance(error, OSError):
            return StoreError(f"{doing.capitalize()} {path} was cut short: {error!r}.", key=LOG)
        found = failure(error, doing=doing, path=path, key=LOG)
        return type(found)(
            f"{found.message} The log takes nothing more.",
            hint="Remove the cause and start this server again: it goes on from the last line that is whole.",
            key=LOG,
        )

    @contextmanager
    def _failures(self, doing: str) -> Generator[None, None, None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise failure(error, doing=doing, path=self._directory / LOG, key=LOG) from error

    def _release(self) -> None:
        for descriptor in (self._file, self._at):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._at = -1
        self._lock.release()


def _again(error: StoreError) -> StoreError:
    """Return the error for one more caller: a raised one collects the traceback of each."""
    return type(error)(error.message, hint=error.hint, key=error.key)


def _wake(waiters: Iterable[_Waiter], error: StoreError | None) -> None:
    """Tell each waiter in its own loop; one call for all that share one."""
    loops: defaultdict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
    for _, loop, future in waiters:
        loops[loop].append(future)
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle_all, futures, error)


def _settle_all(futures: Iterable[asyncio.Future[None]], error: StoreError | None) -> None:
    for future in futures:
        if future.done():  # its task was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(_again(error))
