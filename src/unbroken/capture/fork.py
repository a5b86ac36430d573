"""A question answered by a copy of this process, which then ends: the process itself is not touched.

The copy has everything that is in memory, and nothing that reaches out of it. Before the question is asked
in it, the files, pipes and sockets of the process lead nowhere (reading goes on in a description of its
own), memory shared with others can only be read, nothing can be written, started, sent or ended through
Python, the handlers of signals are gone, and the output is silent. It ends with `os._exit`: no `atexit`, no
flush, no finalizer. It has one thread. It is killed after the timeout, and ends by itself shortly after
that if nobody is left to kill it.

Not promised: a copy of a process that keeps what matters in threads, in another process or on a GPU. It
waits for them until the timeout, or says that it failed. What C code opens by itself is not stopped.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import random
import resource
import select
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NoReturn

GRACE = 5.0
"""Seconds after the timeout at which a copy ends that nobody has ended."""

_OUTSIDE = frozenset({
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod",
    "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "os.kill", "os.killpg", "signal.pthread_kill",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn",
    "socket.connect", "socket.bind", "socket.sendto", "sqlite3.connect",
})  # fmt: skip
"""Events of Python's audit that leave a trace outside of the process."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READABLE = 1
"""PROT_READ of mmap(2)."""


class Unanswered(Exception):
    """The copy gave no answer; the text says why."""


def ask_copy(question: Callable[[], str], *, timeout: float) -> str:
    """Return what `question` returns in a copy of this process. Takes at most `timeout` seconds.

    Raises Unanswered if there can be no copy, if it ended or took too long, or if the question raised.
    """
    if not hasattr(os, "fork"):
        raise Unanswered("this system cannot copy a process")
    reading, writing = os.pipe()
    randomness = random.getstate()  # Python seeds it anew in a copy
    # A signal between the fork and the moment at which the handlers are gone would be handled twice.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = _fork()
        if child == 0:
            _be_copy(question, writing, unblocked, randomness, timeout)
    except OSError as error:
        os.close(reading)
        raise Unanswered(f"this process cannot be copied ({error.strerror})") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.close(writing)
    try:
        said = _listen(reading, timeout)
    finally:
        os.close(reading)
        status = _end(child)
    if said is None:
        raise Unanswered(f"it took longer than {timeout:.3g} s")
    if said[:1] == b"+":
        return said[1:].decode()
    raise Unanswered(said[1:].decode() if said else f"it ended its process (status {status})")


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads in the process: the copy has none of them and needs none.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _listen(reading: int, timeout: float) -> bytes | None:
    """Return all that was said, or None if it did not end in time."""
    end = time.monotonic() + timeout
    said = bytearray()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while poll.poll(max(0.0, end - time.monotonic()) * 1000):
        piece = os.read(reading, 65_536)
        if not piece:
            return bytes(said)
        said += piece
    return None


def _end(child: int) -> int:
    """End the copy and all that is in its session; return its status, or -1 if another one has taken it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # the program takes its children itself, or has told the system to
        return -1


def _be_copy(
    question: Callable[[], str],
    writing: int,
    unblocked: Collection[int],
    randomness: tuple[Any, ...],
    timeout: float,
) -> NoReturn:
    try:
        _cut_off(writing, timeout)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        random.setstate(randomness)
        try:
            said = "+" + question()
        except BaseException as error:  # noqa: BLE001 - nothing may get out of here; it is told
            said = f"-{type(error).__name__}: {error}"
        data = said.encode(errors="replace")
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)


def _cut_off(writing: int, timeout: float) -> None:
    os.setsid()
    _forget_signals()
    signal.setitimer(signal.ITIMER_REAL, timeout + GRACE)
    gc.disable()  # finalizers of the process's garbage are its own
    sys.dont_write_bytecode = True
    _lead_nowhere(writing)
    _protect_shared_memory()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)  # its pool of threads was not copied
    sys.addaudithook(_stay_inside)


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # What Python knows is not what holds: a library that sets a handler from C, to report crashes, would
        # do so in the copy too, and wait for locks that nobody here holds.
        if signal.getsignal(number) is not signal.SIG_IGN:
            with suppress(OSError):  # the C library's own
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # A copy that crashes writes no image of its memory, which may take longer than all else.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _lead_nowhere(writing: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        if fd in (writing, nowhere):
            continue
        try:
            kind = os.fstat(fd).st_mode
        except OSError:  # the one that the folder was listed with
            continue
        if stat.S_ISDIR(kind) or (stat.S_ISCHR(kind) and fd > 2 and not os.isatty(fd)):
            continue
        if stat.S_ISREG(kind) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            _reopen(fd)
        else:
            os.dup2(nowhere, fd)


def _reopen(fd: int) -> None:
    """Read on at the same place without moving it for the process."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(own, fd)
    os.close(own)


def _protect_shared_memory() -> None:
    """Let a write to memory that others see end the copy. Devices (a GPU's registers) stay as they are."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps") as maps:
        for line in maps.read().splitlines():
            span, rights, *rest = line.split(maxsplit=5)
            path = rest[-1] if len(rest) == 4 else ""
            device = path.startswith("/dev/") and not path.startswith(("/dev/shm/", "/dev/zero"))  # noqa: S108
            if rights == "rw-s" and not device:
                start, end = (int(bound, 16) for bound in span.split("-"))
                protect(start, end - start, _READABLE)


def _stay_inside(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what would leave a trace. The process learns of it as of a missing permission."""
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int) or not flags & _WRITES or os.fsdecode(path).startswith("/dev/"):
            return
        raise PermissionError(f"it opens {os.fsdecode(path)} to write, which a copy of the process may not")
    if event in _OUTSIDE:
        raise PermissionError(f"it reaches out of its process ({event}), which a copy of the process may not")
