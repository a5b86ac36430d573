"""Starts the process of a server, in one of two ways, and ends it with all that it has started.

`Direct` runs a new interpreter. `Preloaded` asks a process that has imported NeMo Gym once to fork: a server is
there in a fraction of a second instead of seconds. Both put it into a session of its own, so that Ctrl-C is ours, and
have the kernel kill it when this process is gone. That binds it to the *thread* that starts it: use one that lives as long.

Whoever is asked and says nothing is not waited for without end.

Not promised by `Preloaded`: servers whose modules cannot be forked after NeMo Gym was imported. It is an option.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from unbroken.errors import ConfigError, InternalError, ServerMissing
from unbroken.repo.process import Process, identify

SERVE = "unbroken.adapters.nemo_gym.launch.serve"
PRELOADED = "unbroken.adapters.nemo_gym.launch.preloaded"
FORKS_WITHIN = 300.0
"""Seconds until the forking process has answered; its first answer comes when it has imported NeMo Gym."""


class Starter(Protocol):
    """A way to start servers."""

    def start(
        self, arguments: list[str], *, project: Path, environment: Mapping[str, str], log: Path
    ) -> Process:
        """Start `serve` with these arguments in `project`, its output added to `log`."""
        ...

    def forget(self, process: Process) -> int | None:
        """Collect what is left of a process that has ended. Returns its exit code, or minus the signal that has ended it;
        None: it is not known here."""
        ...

    def close(self) -> None:
        """Start nothing any more."""
        ...


class Direct:
    """A new interpreter for each server."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self, arguments: list[str], *, project: Path, environment: Mapping[str, str], log: Path
    ) -> Process:
        command = [self._python, "-m", SERVE, *arguments, "--parent", str(os.getpid())]
        child = popen(command, environment=environment, project=project, output=log)
        self._children[child.pid] = child
        return identify(child.pid)

    def forget(self, process: Process) -> int | None:
        child = self._children.pop(process.pid, None)
        return None if child is None else child.wait()

    def close(self) -> None:
        self._children.clear()


class Preloaded:
    """One process that has NeMo Gym imported, and forks for each server. Several `Servers` may share it."""

    def __init__(
        self, python: str, *, environment: Mapping[str, str], log: Path, within: float = FORKS_WITHIN
    ) -> None:
        self._lock = threading.Lock()
        self._log = log
        self._within = within
        with private(log) as errors:
            self._process = subprocess.Popen(
                [python, "-m", PRELOADED, str(os.getpid())],
                env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip

    def start(
        self, arguments: list[str], *, project: Path, environment: Mapping[str, str], log: Path
    ) -> Process:
        asked = {
            "arguments": arguments,
            "project": str(project),
            "environment": dict(environment),
            "log": str(log),
        }
        with self._lock:
            line = self._answered(json.dumps(asked).encode() + b"\n")
        if not line:
            raise ServerMissing(
                "The process that starts servers is gone.", hint=f"Look at {self._log}, and start again."
            )
        return identify(int(line))

    def _answered(self, request: bytes) -> bytes:
        """Return the line that the process answers, empty if it is gone.

        Raises:
            ServerMissing: it does not answer. It is ended: what it said later would be taken for another answer.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise InternalError("The process that starts servers has no pipes.")
        try:
            stdin.write(request)
            stdin.flush()
        except BrokenPipeError:
            return b""
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        deadline = time.monotonic() + self._within
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._process.kill()
                raise ServerMissing(
                    f"The process that starts servers did not answer within {self._within:g} s.",
                    hint=f"Look at {self._log}, and start again; without preload, each server is started by itself.",
                )
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                return b""
            line += piece
        return line

    def forget(self, process: Process) -> int | None:
        """Nothing to do: what is left of its children goes with the forking process, and so does how they ended."""
        return None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # a request that it did not read any more


def private(path: Path) -> BinaryIO:
    """Open a file that is added to, and that only its owner may read: servers print what they were asked."""
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def popen(
    command: list[str], *, environment: Mapping[str, str], project: Path, output: Path
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, its output added to a file.

    Raises:
        ConfigError: it cannot be started.
    """
    with private(output) as out:
        try:
            return subprocess.Popen(
                command, cwd=project, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(
                f"{command[0]} cannot be started: {error.strerror}.",
                hint="Name the Python that has NeMo Gym.",
            ) from error


def has_ended(handle: int, timeout: float) -> bool:
    """Wait until the process behind a pidfd is gone with all its threads; return whether it is.

    Its state alone tells that of its first thread: others may hold its port a moment longer.
    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def kill_group(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process that leads its session, and what it has started in it.

    Only for one whose end has not been collected: until then, its number cannot be another's.
    """
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # all of it is gone
