"""What the supervisor of a directory leaves for the next one: the ports, and who the processes were.

In `.launch/servers.json`. A server comes back at its former port, and one that outlived its supervisor is ended before
its port is used. Only what is certainly that process is ended: number and start time, or a member of the session that
it led and that carries this directory in its environment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

from unbroken.adapters.nemo_gym import words
from unbroken.errors import ServerMissing
from unbroken.repo.process import Process, identify

FOLDER = ".launch"
FIRST_PORT, LAST_PORT = 10_001, 20_000
"""Below those that the kernel gives to whoever connects, and those that NeMo Gym takes."""
_PATIENCE_S = 10.0
_MOMENT_S = 3.0


@dataclass(slots=True)
class Record:
    """Kept in `path`."""

    path: Path
    ports: dict[str, int] = field(default_factory=dict[str, int])
    processes: dict[str, Process] = field(default_factory=dict[str, Process])

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read it; what cannot be read is a hint that is missing, no reason not to start."""
        try:
            said = json.loads(path.read_bytes())
            ports = {str(name): int(port) for name, port in said["ports"].items()}
            processes = {str(name): Process(**process) for name, process in said["processes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path)
        return cls(path, ports, processes)

    def write(self) -> None:
        """Put it in the place of the former one."""
        said = {"ports": self.ports, "processes": {name: asdict(one) for name, one in self.processes.items()}}
        temporary = self.path.with_suffix(".part")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(said, file, indent=1)
        os.replace(temporary, self.path)

    def end_stale(self, directory: Path) -> list[str]:
        """End what is left of the last supervisor's servers, and return their names.

        Raises:
            ServerMissing: one of them does not end.
        """
        ended: list[str] = []
        for name, process in self.processes.items():
            left = [process] if process.is_alive() is True else []
            left += _orphans(process, directory)
            for one in left:
                try:
                    os.kill(one.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue  # gone meanwhile
                if not one.wait(_PATIENCE_S):
                    raise ServerMissing(
                        f"{one} is an old process of the server {name!r} and does not end.",
                        hint="End it, then start again.",
                        servers=(name,),
                    )
            if left:
                ended.append(name)
        self.processes.clear()
        return ended


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the server will: a port just left is free
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def becomes_free(host: str, port: int) -> bool:
    """Wait a moment for a port to become free, and return whether it is."""
    deadline = time.monotonic() + _MOMENT_S
    while not is_free(host, port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def free_port(
    host: str, taken: Collection[int], *, between: tuple[int, int] = (FIRST_PORT, LAST_PORT)
) -> int:
    """Return a port that nobody listens at.

    Raises:
        ServerMissing: there is none.
    """
    # The generator of the process belongs to a training, and its seed may be another's too.
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randint(*between)
        if port not in taken and is_free(host, port):
            return port
    raise ServerMissing(
        f"No free port between {FIRST_PORT} and {LAST_PORT} was found.",
        hint="Give ports in the configuration.",
    )


def _orphans(leader: Process, directory: Path) -> list[Process]:
    """Return what a server that is gone had started and that outlived it."""
    found: list[Process] = []
    if leader.is_alive() is None or not Path("/proc/self/stat").exists():
        return found
    mark = f"{words.DIRECTORY}={directory}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == leader.pid:
            continue
        try:
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) != leader.pid or mark not in Path("/proc", name, "environ").read_bytes().split(
                b"\0"
            ):
                continue
        except (OSError, IndexError):
            continue  # gone, or another user's
        found.append(identify(int(name)))
    return found
