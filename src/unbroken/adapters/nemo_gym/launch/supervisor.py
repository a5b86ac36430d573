"""Starts the servers of a NeMo Gym configuration, and keeps them running: without Ray, without uv, on fixed ports.

A server that dies is started again at the same address; it restores itself from its log, and whoever called it goes on
calling. One that dies again and again takes the others with it, and that is said: half an environment gives
wrong data, not an error. Nothing survives this process, however it ends.

One thread starts all servers and waits for their ends; it lives as long as they may, because the kernel binds
their lives to it.

Not promised: that a server which hangs is noticed. Only one that has ended is.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.exclusive import Exclusive
from unbroken.adapters.nemo_gym.launch.configuration import (
    HEAD,
    Instance,
    Plain,
    Source,
    needs_nemo_gym,
    plain,
)
from unbroken.adapters.nemo_gym.launch.placing import place
from unbroken.adapters.nemo_gym.launch.record import FOLDER, Record
from unbroken.adapters.nemo_gym.launch.resolve import resolve
from unbroken.adapters.nemo_gym.launch.serve import CONFIG_DICT
from unbroken.adapters.nemo_gym.launch.spawn import Direct, Preloaded, Starter, has_ended, kill_group
from unbroken.errors import ConfigError, InternalError, ServerMissing
from unbroken.repo.process import Process

_GRACE_S = 5.0
"""What a server has to end by itself. NeMo Gym's take half a second."""
_LONGEST_PAUSE_S = 30.0
_LOOK_S = 0.05
_TAIL = 15
_T = TypeVar("_T")


@dataclass(slots=True)
class _Watched:
    """A server, seen from the thread."""

    instance: Instance
    process: Process | None = None
    handle: int = -1
    ready: bool = False
    """It has answered once."""
    wanted: bool = True
    deaths: list[float] = field(default_factory=list[float])
    due: float | None = 0.0
    """When it is to be started; None: it runs, or shall not."""
    log_begins: int = 0
    """Where in its log file begins what it has printed since its last start."""


class Servers:
    """The running servers of one configuration. A context manager; `start` and `close` do the same.

    Args:
        config: NeMo Gym's global dict, or a YAML file, or several as for its `config_paths`.
        directory: of the logs, on a local disk that survives a restart. Each server has a directory of its name in it;
            what they print is in `.launch/<name>.log`. The next start in it goes on.
        python: the Python that has NeMo Gym; this one, if None.
        project: the directory whose servers win over the installed ones, and that files are looked for in; the current one.
        external: servers of the configuration that somebody else starts, such as a model that the trainer serves itself;
            they need host and port there, and `addresses` has them not.
        head: start a head server as well: `ng_collect_rollouts` asks it where the others are.
        restarts: how many deaths of one server within `window` seconds are answered by a new start; 0 for none.
        start_timeout: seconds until all servers have answered for the first time.
        preload: fork servers from one process that has NeMo Gym imported, instead of starting an interpreter for each;
            a `Preloaded` is such a process, which several may share.
        environment: further variables for the servers.

    Raises:
        ConfigError: the configuration cannot be used, or a port of it is taken.
        RunBusy: another process has servers in this directory.
        ServerMissing: a server ended before it answered, or did not answer in time.

    Example:
        ```python
        with Servers("resources_servers/blackjack/configs/blackjack.yaml", directory="gym") as servers:
            gym = Gym(servers.addresses)
        ```
    """

    def __init__(
        self,
        config: Source,
        *,
        directory: Path | str,
        python: str | None = None,
        project: Path | str | None = None,
        external: Collection[str] = (),
        head: bool = False,
        restarts: int = 5,
        window: float = 300.0,
        start_timeout: float = 300.0,
        preload: bool | Preloaded = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if restarts < 0 or window <= 0 or start_timeout <= 0:
            raise ConfigError(
                f"restarts={restarts}, window={window:g}, start_timeout={start_timeout:g} cannot be used.",
                hint="Give numbers above zero; restarts may be 0.",
            )
        self.directory = Path(directory).expanduser().absolute()
        self.config: Plain = plain(config)
        self.restarted: dict[str, int] = {}
        """How often each server was started again after it had died."""
        self._python = python or sys.executable
        self._project = Path(project or Path.cwd()).expanduser().absolute()
        self._with_head, self._preload, self._external = head, preload, frozenset(external)
        self._restarts, self._window, self._start_timeout = restarts, window, start_timeout
        self._environment = {**os.environ, **(environment or {}), words.DIRECTORY: str(self.directory)}
        self._watched: dict[str, _Watched] = {}
        self._commands: list[tuple[Callable[[], None], threading.Event]] = []
        self._wake: tuple[int, int] | None = None
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._failure: ServerMissing | ConfigError | None = None
        self._starter: Starter | None = None
        self._record = Record(self._folder / "servers.json")
        self._lock: Exclusive | None = None

    def __enter__(self) -> Servers:  # noqa: PYI034 - `Self` came with Python 3.11
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def addresses(self) -> dict[str, str]:
        """Return the URL of each server by its name, as `Gym` takes them."""
        return {name: one.instance.address for name, one in self._watched.items() if name != HEAD}

    @property
    def pids(self) -> dict[str, int]:
        """Return the process number of each server that runs."""
        return {name: one.process.pid for name, one in self._watched.items() if one.process is not None}

    @property
    def failed(self) -> bool:
        """Whether the servers were stopped because of a failure, which was said then and is raised by `check`."""
        return self._failure is not None

    def log_of(self, name: str) -> Path:
        """Return the file that holds what a server prints."""
        return self._folder / f"{name}.log"

    def start(self) -> None:
        """Start all servers, and return once each has answered.

        Raises:
            ConfigError: they were started already, this is no Linux, or the directory cannot be used.
        """
        if self._thread is not None or self._lock is not None:
            raise ConfigError("These servers were started already.", hint="Make another `Servers`.")
        if not sys.platform.startswith("linux"):
            raise ConfigError(
                "Supervising servers needs Linux.", hint="Start them with ng_run, or in a container."
            )
        self._take_directory()
        try:
            self._place()
            self._wake = os.pipe()
            os.set_blocking(self._wake[1], False)
            self._thread = threading.Thread(target=self._run, name="unbroken-servers", daemon=True)
            self._thread.start()
            self.await_ready()
        except BaseException:
            self.close()
            raise

    def await_ready(self, names: Iterable[str] = (), *, timeout: float | None = None) -> None:
        """Return once the servers named, or all, have answered.

        Raises:
            ServerMissing: one ended, or did not answer in time.
        """
        deadline = time.monotonic() + (self._start_timeout if timeout is None else timeout)
        waiting = set(names) or set(self._watched)
        while waiting:
            self.check()
            waiting = {name for name in waiting if not self._answers(self._watched[name])}
            if waiting and time.monotonic() > deadline:
                missing = sorted(waiting)
                raise ServerMissing(
                    f"{', '.join(missing)} did not answer in time.{self._tail(missing[0])}",
                    hint=f"Look at {self.log_of(missing[0])}, or raise start_timeout.",
                    servers=missing,
                )
            if waiting:
                self._over.wait(_LOOK_S)

    def check(self) -> None:
        """Raise what has ended the servers, if anything has.

        Raises:
            ServerMissing: a server died too often. All others were stopped.
        """
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Return when `close` is called from elsewhere; raises as `check`."""
        self._over.wait()
        self.check()

    def restart(self, *names: str) -> None:
        """Kill the servers named, or all, start them again, and return once they answer. No death is counted.

        Raises:
            ConfigError: there is no server of a name, or they are not running.
        """
        chosen = self._chosen(names)
        self.stop(*chosen)
        self._within(lambda: self._set_due(chosen))
        self.await_ready(chosen)

    def stop(self, *names: str) -> None:
        """Kill the servers named, or all (SIGKILL); they stay away until `restart`.

        Raises:
            ConfigError: there is no server of a name, or they are not running.
        """
        chosen = self._chosen(names)
        self._within(lambda: self._kill(chosen))

    def close(self) -> None:
        """End all servers: politely, then for certain."""
        if self._thread is not None:
            self._over.set()
            self._ring()
            self._thread.join()
            self._thread = None
        if self._wake is not None:
            os.close(self._wake[0])
            os.close(self._wake[1])
            self._wake = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # Before the thread runs.

    @property
    def _folder(self) -> Path:
        return self.directory / FOLDER

    def _take_directory(self) -> None:
        try:
            # Each by itself: `parents` makes those above with what the umask leaves.
            if not self.directory.parent.exists():
                self.directory.parent.mkdir(parents=True, exist_ok=True)
            self.directory.mkdir(exist_ok=True, mode=0o700)
            self._folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"{self.directory} cannot be used: {error.strerror}.",
                hint="Give a directory on a local disk.",
            ) from error
        self._lock = Exclusive.take(self._folder / "lock", what=f"The directory {self.directory}")

    def _place(self) -> None:
        """Find out what is to be started, and where it will answer."""
        self._record = Record.read(self._record.path)
        after_kill = bool(self._record.processes)
        for name in self._record.end_stale(self.directory):
            _say(f"{name}: a process that had outlived its supervisor was ended")
        config = self.config
        if needs_nemo_gym(config):
            config = resolve(
                config, python=self._python, project=self._project, environment=self._environment
            )
        placed = place(
            config, self._record, head=self._with_head, after_kill=after_kill, external=self._external
        )
        self.config = placed.config
        self._watched = {one.name: _Watched(one) for one in placed.instances}
        self._record.write()

    # In the thread.

    def _run(self) -> None:
        try:
            self._starter = self._new_starter()
            while not self._over.is_set():
                self._start_due()
                self._await_something()
        except (ServerMissing, ConfigError) as failure:
            self._fail(failure)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            self._fail(
                ServerMissing(f"The supervision of the servers broke: {type(error).__name__}: {error}.")
            )
        finally:
            self._over.set()
            self._end_all()
            self._finish_commands()

    def _new_starter(self) -> Starter:
        if isinstance(self._preload, Preloaded):
            return self._preload
        if self._preload:
            log = self._folder / "preloaded.log"
            return Preloaded(self._python, environment=self._environment, log=log)
        return Direct(self._python)

    def _start_due(self) -> None:
        now = time.monotonic()
        for name, one in self._watched.items():
            if one.due is None or one.due > now or one.process is not None:
                continue
            environment = {**self._environment, CONFIG_DICT: json.dumps(self.config)}
            if one.deaths:
                environment[words.START] = "open"  # nobody stands ready to open it
            one.log_begins = _size_of(self.log_of(name))
            process = _there(self._starter).start(
                [name], project=self._project, environment=environment, log=self.log_of(name)
            )
            one.due, one.ready, one.process = None, False, process
            one.handle = os.pidfd_open(process.pid)
            self._record.processes[name] = process
            self._record.write()

    def _await_something(self) -> None:
        woken = _there(self._wake)[0]
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        by_handle = {one.handle: name for name, one in self._watched.items() if one.process is not None}
        for handle in by_handle:
            poll.register(handle, select.POLLIN)
        due = [one.due for one in self._watched.values() if one.due is not None]
        timeout = max(0.0, min(due) - time.monotonic()) * 1000 if due else None
        for handle, _ in poll.poll(timeout):
            if handle == woken:
                os.read(handle, 4096)
                self._finish_commands()
            elif self._watched[by_handle[handle]].handle == handle:  # a command may have ended it meanwhile
                self._died(by_handle[handle])

    def _died(self, name: str) -> None:
        one = self._watched[name]
        was_ready = one.ready or self.restarted.get(name, 0) > 0
        code = self._collect(one)
        if not one.wanted:
            return
        now = time.monotonic()
        one.deaths = [moment for moment in one.deaths if now - moment < self._window] + [now]
        how = ended(code)
        if not was_ready and not (code is not None and code < 0):  # by itself: it would do so again
            raise ServerMissing(
                f"{name} ended before it answered{how}.{self._tail(name)}",
                hint=f"Look at {self.log_of(name)}.",
                servers=(name,),
            )
        if len(one.deaths) > self._restarts:
            raise ServerMissing(
                f"{name} died {len(one.deaths)} times within {self._window:g} seconds{how}; all servers were stopped.{self._tail(name)}",
                hint=f"Look at {self.log_of(name)}, and start again: what was answered is in the logs.",
                servers=(name,),
            )
        pause = pause_before(len(one.deaths))
        one.due = now + pause
        self.restarted[name] = self.restarted.get(name, 0) + 1
        _say(f"{name} died{how}; it is started again{f' in {pause:g} s' if pause else ''}")

    def _collect(self, one: _Watched) -> int | None:
        """Take in that a server has ended; what it had started goes as well. Returns what `Starter.forget` does."""
        process = _there(one.process)
        kill_group(process)
        code = _there(self._starter).forget(process)
        os.close(one.handle)
        self._record.processes.pop(one.instance.name, None)
        one.process, one.handle = None, -1
        return code

    def _kill(self, names: Sequence[str]) -> None:
        chosen = [self._watched[name] for name in names]
        for one in (
            chosen
        ):  # all before the first is waited for: what one of them does then is not what a kill leaves
            one.wanted, one.due = False, None
            if one.process is not None:
                kill_group(one.process)
        for one in chosen:
            if one.process is not None:
                has_ended(one.handle, _GRACE_S)
                self._collect(one)

    def _set_due(self, names: Sequence[str]) -> None:
        for name in names:
            one = self._watched[name]
            one.wanted, one.due = True, 0.0
            one.deaths.clear()

    def _end_all(self) -> None:
        running = [one for one in self._watched.values() if one.process is not None]
        for one in running:
            try:
                os.kill(_there(one.process).pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + _GRACE_S
        for one in running:
            has_ended(one.handle, max(0.0, deadline - time.monotonic()))
            self._collect(one)
        if self._starter is not None and self._starter is not self._preload:
            self._starter.close()
        self._record.write()

    def _fail(self, failure: ServerMissing | ConfigError) -> None:
        self._failure = failure
        _say(str(failure))

    def _finish_commands(self) -> None:
        with self._guard:
            commands, self._commands = self._commands, []
        for command, done in commands:
            if not self._over.is_set():
                command()
            done.set()

    # From any thread.

    def _chosen(self, names: Sequence[str]) -> list[str]:
        if unknown := [name for name in names if name not in self._watched]:
            raise ConfigError(
                f"There is no server {unknown[0]!r}.", hint=f"There are {', '.join(self._watched)}."
            )
        return list(names or self._watched)

    def _within(self, command: Callable[[], None]) -> None:
        """Have the thread do something, and wait until it is done."""
        done = threading.Event()
        with self._guard:
            self._commands.append((command, done))
        if self._thread is None:
            raise ConfigError("These servers are not running.", hint="Call start() first.")
        self._ring()
        while not done.wait(1.0):
            if self._over.is_set() and not self._thread.is_alive():
                break
        self.check()

    def _ring(self) -> None:
        if self._wake is None:
            raise InternalError("There is no thread to be woken.")
        try:
            os.write(self._wake[1], b".")
        except BlockingIOError:
            pass  # it is full of rings already

    def _answers(self, one: _Watched) -> bool:
        process = one.process
        if process is None:
            return False
        instance = one.instance
        connection = http.client.HTTPConnection(instance.host, instance.port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if process is one.process:
            one.ready = True
        return one.ready

    def _tail(self, name: str) -> str:
        try:
            with open(self.log_of(name), "rb") as file:
                file.seek(self._watched[name].log_begins)
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "".join(f"\n    {line}" for line in lines[-_TAIL:]) + "\n" if lines else ""


def pause_before(deaths: int) -> float:
    """Return how many seconds a server that has died so often of late waits for its next start."""
    return 0.0 if deaths <= 1 else min(2.0 ** (deaths - 2), _LONGEST_PAUSE_S)


def ended(code: int | None) -> str:
    """Return in a few words how a process has ended: by its exit code, or by minus the signal.

    >>> ended(-9), ended(1), ended(None)
    (' (SIGKILL)', ' (exit code 1)', '')
    """
    if code is None:
        return ""
    if code >= 0:
        return f" (exit code {code})"
    try:
        return f" ({signal.Signals(-code).name})"
    except ValueError:  # of real time: they have no names
        return f" (signal {-code})"


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _there(value: _T | None) -> _T:
    """Return what must be there while the thread runs."""
    if value is None:
        raise InternalError("The thread that starts servers lacks what it works with.")
    return value


def _say(text: str) -> None:
    sys.stderr.write(f"unbroken: {text}\n")
    sys.stderr.flush()
