"""Clusters of Ray that are nobody else's, and drivers that are run in one of their own until nothing is left of it.

A cluster is found by an address in the environment and entered with a token from the home directory. Of two that start
at one time there the second would write its token over the first's, whose workers are then turned away for ever.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

TAIL = 5000


def apart() -> dict[str, str]:
    """Return the environment of a process whose cluster is nobody else's."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {
        **inherited,
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray's own is 15: beside other work its workers would hardly come to anything.
        "RAY_worker_niceness": "0",
    }


@contextmanager
def cluster_of_its_own() -> Generator[dict[str, str]]:
    """Give such an environment, and remove at the end what the cluster has written."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        yield {**apart(), "RAY_TMPDIR": place}


def said_in(environment: dict[str, str]) -> str:
    """Return what all workers of a cluster have written: what Ray hands on to a driver may come after its end."""
    logs = sorted(Path(environment["RAY_TMPDIR"]).glob("ray/session_2*/logs/worker-*"))
    return "".join(log.read_text(errors="replace") for log in logs)


def carried_out(command: Sequence[str], *, seconds: float, expect: int = 0, **variables: str) -> str:
    """Run a driver that starts a cluster; return all that it and its workers have written.

    When this returns, no process of it is left that could still write: workers outlive a driver that was killed, for
    seconds, and each is a process group of its own.
    """
    with cluster_of_its_own() as environment:
        process = subprocess.Popen(
            command,
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        late = ""
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            end_session(process.pid)
            told, _ = process.communicate()
            late = f"has not come to its end in {seconds:g} seconds\n"
        finally:
            end_session(process.pid)
            process.wait()
        workers = said_in(environment)
    assert not late and process.returncode == expect, f"{late}{told[-TAIL:]}\n{workers[-TAIL:]}"
    return told + workers


def end_session(leader: int) -> None:
    """Kill all processes of a session, and wait until they have ended."""
    while members := [pid for pid in running() if session_of(pid) == leader]:
        for pid in members:
            with suppress(ProcessLookupError):
                ended = os.pidfd_open(pid)
                try:
                    if session_of(pid) == leader:
                        signal.pidfd_send_signal(ended, signal.SIGKILL)
                        select.select([ended], [], [])
                finally:
                    os.close(ended)


def running() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def session_of(pid: int) -> int:
    """Return the session of a process that has not ended; 0 for others."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state in "ZX" else int(session)
