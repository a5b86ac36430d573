"""Starting a script, watching it, and killing it with everything it started.

Invariant: when a `Launch` is closed, no process that the script started is left, and no other process
was touched. The supervisor (see `supervisor.py`) does the killing; this is the side that `prove` holds.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias, cast

from unbroken.errors import ConfigError, InternalError

KillTarget: TypeAlias = Literal["trainer", "tree"]

SUPERVISOR = Path(__file__).with_name("supervisor.py")
LEAVE_S = 1.0
"""How long processes that outlive a script's normal end may take to end by themselves."""
DIE_S = 30.0
"""How long the command may take to end after its trainer was killed under it."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a tree: command lines of processes, and files of shared memory."""

    processes: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


def _texts(found: object) -> tuple[str, ...]:
    return tuple(map(str, cast("list[object]", found)))


class Launch:
    """One running script: a process tree with its log files.

    Use it as a context manager. `exit_code` is None while the command runs; negative numbers are
    signals, as in `subprocess`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: Path,
        err: Path,
        progress: Path,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError(
                "Killing a whole process tree and nothing else needs Linux.",
                hint="Run it in a Linux container or virtual machine.",
            )
        self.out = out
        self.err = err
        self.progress = progress
        self.exit_code: int | None = None
        self.empty = False
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(out), str(err), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # Ctrl-C reaches `prove`, which then ends the tree in its own order
            bufsize=0,
        )
        try:
            self.pid = self._await_start()
        except BaseException:
            self.close()
            raise

    def _await_start(self) -> int:
        while True:
            events = self._events(None)
            self._take(events)  # a short script may have ended before this line
            for event in events:
                if event["event"] == "started":
                    return int(str(event["pid"]))
                if event["event"] == "failed":
                    raise ConfigError(
                        f"The command cannot be started: {event['reason']}.",
                        hint="Check the words after `--`; the command must work in this directory as it is.",
                    )

    def wait(self, timeout: float) -> bool:
        """Wait until the command has ended, at most `timeout` seconds; return whether it has."""
        deadline = time.monotonic() + timeout
        while self.exit_code is None and (left := deadline - time.monotonic()) > 0:
            self._take(self._events(left))
        return self.exit_code is not None

    def kill(self, target: KillTarget) -> bool:
        """Kill the whole tree, or only the process that trains; return whether it was still at work.

        When this returns, the command has ended. What a killed trainer leaves behind stays alive until
        `close`.
        """
        if target == "trainer":
            killed = self._order(f"trainer {os.path.realpath(self.progress)}") > 0
            if not self.wait(DIE_S):
                self._order("tree")
            return killed
        self._order("tree")
        # The command dies first of its tree, so only an end of its own, a moment before, leaves a 0.
        return self.exit_code != 0

    def leave(self) -> None:
        """After a normal end: give what is left of the tree a moment to end by itself."""
        deadline = time.monotonic() + LEAVE_S
        while not self.empty and (left := deadline - time.monotonic()) > 0:
            self._take(self._events(left))

    def left(self) -> Left:
        """Return what is there of the tree."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"left\n")
        while True:
            events = self._events(None)
            self._take(events)
            for event in events:
                if event["event"] == "left":
                    return Left(_texts(event["processes"]), _texts(event["shared"]))

    @property
    def closed(self) -> bool:
        """Whether nothing is left of it."""
        assert self._process.stdin is not None
        return self._process.stdin.closed

    def close(self) -> None:
        """Kill whatever is left and wait until it is gone. May be called again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Launch:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _order(self, line: str) -> int:
        """Give the supervisor an order and wait until it is done; return how many were killed."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        while True:
            events = self._events(None)
            self._take(events)
            for event in events:
                if event["event"] == "done":
                    return int(str(event["killed"]))

    def _take(self, events: Sequence[Mapping[str, object]]) -> None:
        for event in events:
            if event["event"] == "ended":
                self.exit_code = int(str(event["code"]))
            elif event["event"] == "empty":
                self.empty = True

    def _events(self, timeout: float | None) -> list[Mapping[str, object]]:
        """Return what the supervisor has said, after waiting at most `timeout` seconds for it."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            return []
        data = os.read(self._process.stdout.fileno(), 65536)
        if not data:
            raise InternalError(
                f"The process that supervises the script is gone (status {self._process.wait()}).",
                hint=f"Its last words are in {self.err}.",
            )
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]
