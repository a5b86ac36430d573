"""The process that stands between `prove` and the script, and owns every process the script starts.

Run by path (`python -I -S supervisor.py OUT ERR COMMAND...`), standard library only, so that it starts in
milliseconds. It makes itself the reaper of all its descendants: a worker that daemonizes becomes its
child instead of init's, so "everything below me" is exactly what the script started, and nothing else.

It obeys lines on standard input (`tree`: kill everything; `trainer PATH`: kill the process that keeps
PATH open; `left`: say what is there) and reports JSON lines on standard output. When standard input ends, it kills everything and
exits: the script never outlives `prove`, however `prove` itself ended.

It does not promise to find processes that another daemon started at the script's request (containers,
batch systems), and it needs Linux.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

PR_SET_CHILD_SUBREAPER = 36
NOT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Only `prove` decides when the script dies; it does so by closing our standard input."""
PAUSE_S = 0.001
SHARED = "/dev/shm"  # noqa: S108 - only looked at


class Reaper:
    """The script's main process and everything below this one."""

    def __init__(self) -> None:
        self.main = 0
        self.ended = False
        self.told_empty = False
        self.shared: set[str] = set()
        """Files of shared memory that the processes were seen to use."""

    def start(self, out: str, err: str, command: list[str]) -> None:
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, err, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        ]
        # Ignored here, and ignoring is inherited: the script must find them as a shell leaves them.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ, *NOT_FOR_US]
        self.main = os.posix_spawnp(command[0], command, os.environ, file_actions=files, setsigdef=defaults)

    def reap(self) -> None:
        """Collect the dead; say so if the main process is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.ended = True
                say(event="ended", code=os.waitstatus_to_exitcode(status))

    def look(self) -> None:
        """Note which shared memory the processes use: once they are dead nothing tells whose it was."""
        if os.path.isdir(SHARED):
            for pid, _ in descendants(os.getpid()):
                self.shared.update(shared_by(pid))

    def left(self) -> dict[str, list[str]]:
        """Return the command lines of the processes that live, and the shared memory that is still there."""
        self.look()
        return {
            "processes": sorted(command_of(pid) for pid, _ in descendants(os.getpid())),
            "shared": sorted(path for path in self.shared if os.path.exists(path)),
        }

    def kill_tree(self) -> int:
        """Kill everything below this process until nothing is left; return how many were killed.

        The dead are collected too, so that no pid is left that looks alive. Repeated, because a process
        may fork between the look and the signal; its child then becomes ours and is met in the next
        round.
        """
        killed: set[tuple[int, int]] = set()
        while True:
            self.reap()
            below = list(descendants(os.getpid(), dead=True))
            if not below:
                return len(killed)
            for pid, born in below:
                if (pid, born) not in killed and kill(pid, born):
                    killed.add((pid, born))
            time.sleep(PAUSE_S)

    def kill_trainer(self, held: str) -> int:
        """Kill only the process that trains: the oldest below us that keeps the file `held` open.

        Oldest, because workers forked by the trainer inherit its open files. The command itself may be
        a shell or a launcher, so its process is only the fallback.
        """
        holders = [(born, pid) for pid, born in descendants(os.getpid()) if holds(pid, held)]
        if holders:
            born, pid = min(holders)
            return int(kill(pid, born))
        self.reap()
        if not self.ended:
            os.kill(self.main, signal.SIGKILL)  # ours until we reap it: the number cannot be another's
        return int(not self.ended)


def descendants(root: int, *, dead: bool = False) -> Iterator[tuple[int, int]]:
    """Yield (pid, start time) of every process below `root`, parents first; zombies only if `dead`."""
    below: dict[int, list[tuple[int, int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := stat(int(name))) is not None:
            parent, born, state = found
            below.setdefault(parent, []).append((int(name), born, state))
    queue = [root]
    while queue:
        for pid, born, state in below.get(queue.pop(), ()):
            queue.append(pid)
            if dead or state not in "ZX":
                yield pid, born


def stat(pid: int) -> tuple[int, int, str] | None:
    """Return (parent, start time, state) of a process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may itself hold blanks and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[1]), int(fields[19]), fields[0].decode()) if len(fields) > 19 else None


def kill(pid: int, born: int) -> bool:
    """Send SIGKILL to the process that had this pid and start time; return whether it still existed.

    The number is pinned before the start time is read again: else a stranger that has got the number
    in between would be killed.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        now = stat(pid)
        if now is None or now[1] != born:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def command_of(pid: int) -> str:
    """Return the command line of a process; nothing if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def shared_by(pid: int) -> set[str]:
    """Return the files of shared memory that a process has mapped."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if SHARED in line}
    except OSError:  # gone, or another user's
        return set()
    return {path for path in paths if path.startswith(SHARED + "/") and not path.endswith(" (deleted)")}


def holds(pid: int, path: str) -> bool:
    """Whether a process keeps `path` open."""
    try:
        return any(target(file) == path for file in os.scandir(f"/proc/{pid}/fd"))
    except OSError:  # gone, or another user's: not the trainer we are looking for
        return False


def target(link: os.DirEntry[str]) -> str:
    """Return what a link points to; nothing if it is gone."""
    try:
        return os.readlink(link.path)
    except FileNotFoundError:
        return ""


def say(**event: object) -> None:
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        pass  # `prove` is gone; the end of standard input says the same and ends everything


def woken(number: int, frame: object) -> None:
    """Do nothing: a handler must exist, else the signal is dropped and nothing is written to the pipe."""


def main(arguments: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        say(event="failed", reason=f"this system refuses a child reaper (errno {ctypes.get_errno()})")
        return 1
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, woken)
    for number in NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    reaper = Reaper()
    out, err, *command = arguments
    try:
        reaper.start(out, err, command)
    except OSError as error:
        say(event="failed", reason=f"{command[0]}: {error.strerror}")
        return 1
    say(event="started", pid=reaper.main)
    pending = b""
    while True:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 512)
            reaper.reap()
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                reaper.kill_tree()
                return 0
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                word, _, rest = line.decode().partition(" ")
                if word == "left":
                    say(event="left", **reaper.left())
                elif word == "tree":
                    reaper.look()
                    say(event="done", killed=reaper.kill_tree())
                elif word == "trainer":
                    reaper.look()
                    say(event="done", killed=reaper.kill_trainer(rest))
        if reaper.ended and not reaper.told_empty and next(descendants(os.getpid()), None) is None:
            reaper.told_empty = True
            say(event="empty")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
