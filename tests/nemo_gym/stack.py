"""An agent, a resources server and the scripted model as real processes, for tests that kill them.

```python
with Stack(tmp_path, resources="workplace_assistant") as stack:
    stack.hold(2)                                   # the model does not answer its turn 2
    answer = stack.run_later(scripted([[call("tool", x=1)], …, "done"], expected=…))
    stack.await_turn(2)
    stack.kill("res")                               # SIGKILL; "all" for everything
    stack.let_go(2)
    stack.restart("res")
    assert answer.result()["reward"] == 1.0
    assert stack.model_calls() == [0, 1, 2, 3]
```

The servers are called `res`, `agent` and `policy_model`. They are forked from one process that has NeMo Gym imported and
that all tests of a pytest process share, so that a start takes a fraction of a second (`preload=False`: as a user's are).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import msgspec

from unbroken.adapters.nemo_gym import control, keys, words
from unbroken.adapters.nemo_gym.launch.spawn import Preloaded
from unbroken.adapters.nemo_gym.launch.supervisor import Servers

HERE = Path(__file__).parent
MODEL = "policy_model"
PATIENCE = 300.0
"""Seconds until a test that waits for what cannot happen any more is told so."""
T = TypeVar("T", bound=msgspec.Struct)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A tool call, as the script of the model has it."""
    return {"name": name, "args": arguments}


def scripted(script: Sequence[Any], **fields: Any) -> dict[str, Any]:
    """A row whose rollout goes as `script` says: lists of calls, and a text at the end. `fields` are the task's."""
    message = {"role": "user", "content": json.dumps({"script": script})}
    return {"responses_create_params": {"input": [message]}, **fields}


def counter(*adds: int, start: int = 3, **fields: Any) -> dict[str, Any]:
    """A row for example_session_state_mgmt: adds, one a turn, and a look at the sum. Its reward tells whether it is right."""
    turns: list[Any] = [[call("increment_counter", count=add)] for add in adds]
    return scripted(
        [*turns, [call("get_counter_value")], "done"],
        initial_count=start,
        expected_count=start + sum(adds),
        **fields,
    )


class Stack:
    """See the module.

    Args:
        directory: of this test. Logs are in `<directory>/gym`.
        resources: the directory of a resources server, or `module:Class` for one that a test brings.
        agent: the directory of an agent.
        settings: further settings of the resources server.
        agent_settings: further settings of the agent.
        supervised: a server that is killed is started again by the supervisor.
        wrapped: whether servers are checkpointed at all; False is NeMo Gym as it is.
        delay: seconds that an answer of the model takes.
        extra: further servers, in NeMo Gym's form.
        environment: variables for the servers.
    """

    def __init__(
        self,
        directory: Path,
        *,
        resources: str = "example_session_state_mgmt",
        agent: str = "simple_agent",
        settings: Mapping[str, Any] | None = None,
        agent_settings: Mapping[str, Any] | None = None,
        supervised: bool = False,
        wrapped: bool = True,
        preload: bool = True,
        delay: float = 0.0,
        extra: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.gym = directory / "gym"
        self._hold = directory / "hold"
        self._calls = directory / "model_calls"
        self._hold.mkdir(parents=True, exist_ok=True)
        own: dict[str, Any] = {} if wrapped else {"unbroken": False}
        folder = resources
        if ":" in resources:
            folder = "of_a_test"
            if wrapped:
                own = {"unbroken": {"class": resources}}
        self.config: dict[str, Any] = {
            **_ports(),
            "res": {
                "resources_servers": {
                    folder: {"entrypoint": "app.py", "domain": "agent", **own, **(settings or {})}
                }
            },
            "agent": {
                "responses_api_agents": {
                    agent: {
                        "entrypoint": "app.py",
                        "resources_server": {"type": "resources_servers", "name": "res"},
                        "model_server": {"type": "responses_api_models", "name": MODEL},
                        **({} if wrapped else {"unbroken": False}),
                        **(agent_settings or {}),
                    }
                }
            },
            MODEL: {
                "responses_api_models": {
                    "scripted_model": {
                        "entrypoint": "app.py",
                        "call_log": str(self._calls),
                        "hold": str(self._hold),
                        "delay": delay,
                        **({} if wrapped else {"unbroken": False}),
                    }
                }
            },
            **(extra or {}),
        }
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.servers = Servers(
            self.config,
            directory=self.gym,
            project=project_in(directory),
            preload=preloaded() if preload else False,
            restarts=20 if supervised else 0,
            environment={"PYTHONPATH": paths, **(environment or {})},
        )

    def __enter__(self) -> Stack:  # noqa: PYI034 - as `Servers`
        self.servers.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in self._hold.iterdir():
            held.unlink()
        if error is not None:
            self.show()
        self.servers.close()

    @property
    def addresses(self) -> dict[str, str]:
        return self.servers.addresses

    def run(self, row: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Roll a row out, and return the agent's answer."""
        answer = self.post("agent", "/run", row, headers=headers)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    def run_later(
        self, row: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, until_answered: bool = True
    ) -> Future[dict[str, Any]]:
        """Roll a row out in a thread. It asks again if the agent dies meanwhile, as trainers do, unless told not to."""
        future: Future[dict[str, Any]] = Future()
        deadline = time.monotonic() + PATIENCE

        def body() -> None:
            while True:
                try:
                    future.set_result(self.run(row, headers=headers))
                except httpx.TransportError as error:
                    if until_answered and time.monotonic() < deadline:
                        time.sleep(0.05)
                        continue
                    future.set_exception(error)
                except Exception as error:  # noqa: BLE001 - raised where the result is asked for
                    future.set_exception(error)
                return

        threading.Thread(target=body, daemon=True).start()
        return future

    def post(
        self,
        server: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Send a request to a server. `options` are httpx's."""
        content = json.dumps(body if body is not None else {}).encode()
        every = {"content-type": "application/json", **(headers or {})}
        return httpx.post(
            self.addresses[server] + path, content=content, headers=every, timeout=PATIENCE, **options
        )

    def kill(self, *names: str) -> None:
        """Send SIGKILL to the servers named ("all": to all). One that is supervised comes back by itself."""
        chosen = () if names == ("all",) else names
        self.servers.stop(*chosen)

    def restart(self, *names: str) -> None:
        """Start servers again (all, if none is named), those that run after a SIGKILL."""
        chosen = () if names == ("all",) else names
        self.servers.restart(*chosen)

    def hold(self, turn: int) -> None:
        """From now on the model does not answer this turn, whoever asks."""
        (self._hold / str(turn)).touch()

    def let_go(self, turn: int) -> None:
        (self._hold / str(turn)).unlink(missing_ok=True)

    def await_turn(self, turn: int, *, count: int = 1) -> None:
        """Return once the model was asked for this turn `count` times. Held, the rollout then stands there."""
        deadline = time.monotonic() + PATIENCE
        while self.model_calls().count(turn) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"turn {turn} was not asked for {count} times: {self.model_calls()}")
            time.sleep(0.01)

    def model_calls(self) -> list[int]:
        """Return the turns that the model was asked for, in order, in all its lives."""
        try:
            return [int(line) for line in self._calls.read_text().splitlines()]
        except FileNotFoundError:
            return []

    def status(self, server: str = "res") -> control.Status:
        """Ask a server how it is."""
        return self.control(server, "status", control.Status)

    def digests(self) -> dict[str, str]:
        """Return the digest of the state of each session of the resources server, by its id."""
        return {
            session.id: session.digest
            for session in self.control("res", "digests", control.Sessions).sessions
        }

    def control(
        self,
        server: str,
        operation: str,
        kind: type[T],
        arguments: msgspec.Struct | None = None,
        *,
        epoch: int = 0,
    ) -> T:
        """Carry out a control operation."""
        answer = httpx.post(
            f"{self.addresses[server]}{words.PREFIX}{operation}",
            content=msgspec.msgpack.encode(arguments) if arguments is not None else b"",
            headers={words.CONTROL: keys.control_token(), words.EPOCH: str(epoch)},
            timeout=PATIENCE,
        )
        assert answer.status_code == 200, f"{operation}: {answer.status_code} {answer.content!r}"
        return msgspec.msgpack.decode(answer.content, type=kind)

    def show(self, *, lines: int = 20) -> None:
        """Print the end of what each server has printed; pytest shows it with a failure."""
        for name in self.addresses:
            log = self.servers.log_of(name)
            if log.exists():
                print(f"--- {name}", *log.read_text(errors="replace").splitlines()[-lines:], sep="\n")


_CLAIMS: list[socket.socket] = []
"""What keeps a range of ports this process's own for as long as it lives."""


@functools.cache
def _ports() -> Mapping[str, int]:
    """Return a range for this process alone, on the whole machine: between a look at a port and its use, another could
    take it."""
    for low in range(12_000, 32_000, 500):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0unbroken-tests-ports-{low}")
        except OSError:
            claim.close()  # another one's
        else:
            _CLAIMS.append(claim)
            return {"port_range_low": low, "port_range_high": low + 499}
    raise AssertionError("every range of ports is somebody's")


@functools.cache
def preloaded() -> Preloaded:
    """Return the process that servers are forked from. It ends with this one.

    To be called from pytest's own thread: the kernel ends it with the thread that started it.
    """
    output = Path(tempfile.mkdtemp(prefix="unbroken-preloaded-")) / "log"
    forking = Preloaded(sys.executable, environment=os.environ, log=output)
    atexit.register(forking.close)
    return forking


def project_in(directory: Path) -> Path:
    """Make a user's directory that has the scripted model."""
    model = directory / "project" / "responses_api_models" / "scripted_model"
    model.mkdir(parents=True, exist_ok=True)
    app = model / "app.py"
    if not app.exists():
        app.symlink_to(HERE / "scripted_model.py")
    return directory / "project"
