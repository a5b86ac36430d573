"""Sends rollouts to their agents and brings the ends into the ledger, in threads.

A server that is down is waited for, with growing pauses: a supervisor starts it again, and its agent goes on where it
was. An attempt is spent by what servers say, and by no connection that is lost: these are bounded by the time.

Not promised: an end for a rollout whose agent answers nothing and stays connected. A save names it, after `sync_timeout`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from unbroken.adapters.nemo_gym.trainer.ledger import Entry, Ledger
from unbroken.adapters.nemo_gym.trainer.outcomes import Again, Completed, Failed, Lost, Verdict, Wait, judge
from unbroken.adapters.nemo_gym.trainer.remote import http, unlogged
from unbroken.engine.saying import say
from unbroken.errors import InternalError

if TYPE_CHECKING:
    import httpx

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
CONNECT_WITHIN = 10.0
MOST_STALE = 1000
"""Attempts in a row that an agent may call stale: it has seen later ones of a process that was killed."""


class Dispatcher:
    """Sends the rollouts of one ledger, `concurrency` at once.

    `changed` guards the ledger, and is notified at each end. `address` gives an agent's URL. `trouble` is what went wrong
    with the servers altogether; None: nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        changed: threading.Condition,
        *,
        address: Callable[[str], str],
        concurrency: int,
        max_attempts: int,
        patience: float,
    ) -> None:
        self.trouble: BaseException | None = None
        self._ledger = ledger
        self._changed = changed
        self._address = address
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._patience = patience
        self._waiting: SimpleQueue[str | None] = SimpleQueue()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._load = 0
        self._client: httpx.Client | None = None
        self._told_anew = False
        self._sockets: dict[str, socket.socket] = {}
        """Of the rollouts that are with their agents."""

    def send(self, rollouts: Iterable[str]) -> None:
        """Have these rollouts sent. Call it with `changed` held."""
        if self._client is None:
            self._client = _client()
        for rollout in rollouts:
            self._waiting.put(rollout)
            self._load += 1
            if len(self._threads) < min(self._load, self._concurrency):
                # Daemons: who hangs in an agent's answer must not keep the process from ending.
                thread = threading.Thread(target=self._work, name="unbroken-rollout", daemon=True)
                self._threads.append(thread)
                thread.start()

    def give_up(self, rollouts: Iterable[str]) -> None:
        """Wait no longer for the answers of rollouts that the ledger has forgotten: an agent that hangs would keep a thread
        from sending others. Call it with `changed` held."""
        for rollout in rollouts:
            if (connection := self._sockets.get(rollout)) is not None:
                _end(connection)

    def close(self) -> None:
        """Send nothing any more. Answers that still come are not taken."""
        self._closed.set()
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        try:
            self._take_turns()
        finally:
            with self._changed:
                self._threads.remove(threading.current_thread())
                if not self._threads and self._client is not None:
                    self._client.close()
                    self._client = None

    def _take_turns(self) -> None:
        while (rollout := self._waiting.get()) is not None and not self._closed.is_set():
            try:
                self._carry_out(rollout)
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the rollout
                with self._changed:
                    self.trouble = self.trouble or error
                    self._changed.notify_all()
            finally:
                with self._changed:
                    self._load -= 1

    def _carry_out(self, rollout: str) -> None:
        """Send one rollout until it has come to an end."""
        down = time.monotonic()  # since when its agent was not reached
        pause, stale = FIRST_PAUSE, 0
        losses: list[float] = []
        while not self._closed.is_set():
            with self._changed:
                if not self._ledger.knows(rollout):  # nobody waits for it any more
                    return
                entry, body = self._ledger.dispatch(rollout)
                attempt, agent = entry.attempt, entry.agent
            verdict = self._post(rollout, self._address(agent), body)
            now = time.monotonic()
            if isinstance(verdict, Wait):
                if now - down >= self._patience:
                    said = f"Its agent could not be reached for {self._patience:g} s. {verdict.error}"
                    self._unresolved(rollout, attempt, said)
                    return
            elif isinstance(verdict, Lost):
                losses.append(now)
                # Both: long rollouts are lost seldom and late, and an agent that cannot start is lost often and at once.
                if len(losses) >= self._max_attempts and now - losses[0] >= self._patience:
                    said = f"The connection to its agent was lost {len(losses)} times in {now - losses[0]:.3g} s."
                    self._unresolved(rollout, attempt, f"{said} {verdict.error}")
                    return
                down = now
                with self._changed:
                    if self._closed.is_set() or not self._ledger.again(rollout, attempt, spent=False):
                        return
            else:
                losses.clear()
                down, pause = now, FIRST_PAUSE
                stale += isinstance(verdict, Again) and not verdict.spent
                if self._settled(entry, attempt, verdict, stale):
                    return
            if not isinstance(verdict, Again) or verdict.spent:
                self._closed.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _unresolved(self, rollout: str, attempt: int, said: str) -> None:
        with self._changed:
            if not self._closed.is_set():
                self._ledger.fail(rollout, attempt, outcome="unresolved", error=said)
                self._changed.notify_all()

    def _settled(self, entry: Entry, attempt: int, verdict: Completed | Failed | Again, stale: int) -> bool:
        """Bring a verdict into the ledger; return whether the rollout has come to an end."""
        with self._changed:
            if self._closed.is_set():
                return True
            ledger = self._ledger
            if isinstance(verdict, Completed):
                ledger.complete(
                    entry.id, attempt,
                    reward=verdict.reward, response=verdict.response, policy_versions=verdict.policy_versions,
                )  # fmt: skip
            elif isinstance(verdict, Failed):
                ledger.fail(
                    entry.id, attempt, outcome="failed", error=verdict.error, response=verdict.response
                )
            elif (verdict.spent and entry.tries + 1 >= self._max_attempts) or stale > MOST_STALE:
                ledger.fail(entry.id, attempt, outcome="failed", error=verdict.error)
            else:
                if verdict.anew and not self._told_anew:  # once: a server that is lost has many sessions
                    self._told_anew = True
                    say(
                        f"unbroken: rollouts whose sessions are refused begin anew, {entry.id} first: {verdict.error}"
                    )
                return not ledger.again(entry.id, attempt, spent=verdict.spent)
            self._changed.notify_all()
            return True

    def _post(self, rollout: str, url: str, body: bytes) -> Verdict:
        library = http()
        client = self._client
        if client is None:
            raise InternalError("A rollout would be sent before there is a connection.")
        try:
            with unlogged():
                reply = client.post(
                    f"{url}/run",
                    content=body,
                    headers={"content-type": "application/json"},
                    extensions={"trace": partial(self._note, rollout)},
                )
        except (library.ConnectError, library.ConnectTimeout) as error:
            return Wait(f"{type(error).__name__}: {error}")
        except library.TransportError as error:  # it was sent, and nobody knows what has become of it
            return Lost(f"{type(error).__name__}: {error}")
        finally:
            with self._changed:
                self._sockets.pop(rollout, None)
        headers = {key.lower(): value for key, value in reply.headers.items()}
        return judge(reply.status_code, headers, reply.content)

    def _note(self, rollout: str, event: str, details: Mapping[str, Any]) -> None:
        """Note the socket of a rollout; called by httpx at each of its steps."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            connection = details["return_value"].get_extra_info("socket")
            with self._changed:
                self._sockets[rollout] = connection
                if not self._ledger.knows(rollout):  # it was given up meanwhile
                    _end(connection)


def _end(connection: socket.socket) -> None:
    """End a connection that another thread reads from. That it is closed would not wake that one."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself


def _client() -> httpx.Client:
    """Return a client that waits for an answer as long as the other side's machine is there.

    No connection is used twice: one that a server has closed meanwhile would look like a rollout that got lost.
    """
    library = http()
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):  # not everywhere but on Linux
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    found: httpx.Client = library.Client(
        transport=library.HTTPTransport(
            limits=library.Limits(max_connections=None, max_keepalive_connections=0), socket_options=options
        ),
        timeout=library.Timeout(None, connect=CONNECT_WITHIN),
        trust_env=False,
    )
    return found
