"""One moment for all servers: everybody stops between two calls, what changed comes over, everybody goes on.

Agents first: one that is parked asks nobody anything more, so model and resources servers run dry behind it. The other
way round when it goes on: who is asked is open before those who ask. Whatever happens, whoever was told to stop is told
to go on; a server that cannot be told so is named.

Not promised: that a server that stopped answering in the middle is open again. It opens when it hears of the next cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from unbroken.adapters.nemo_gym.control import Exported, Role, Status
from unbroken.adapters.nemo_gym.trainer.remote import Declined, Remote
from unbroken.engine.saying import say
from unbroken.errors import Fenced, ServerMissing, UnbrokenError

STOPPING: tuple[Role, ...] = ("agent", "model", "resources")
STARTING: tuple[Role, ...] = ("resources", "model", "agent")
RELEASE_WITHIN = 5.0
"""Seconds that opening a server again may take at most: it must be tried even when the time for the cut is over."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Since:
    """Up to where a server's records are known."""

    lineage: str = ""
    mark: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one server said in the cut."""

    status: Status
    exported: Exported


def cut(
    fleet: Mapping[Role, Sequence[Remote]],
    since: Mapping[str, Since],
    *,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    lacks: Callable[[str, Exported], Collection[str]] = lambda name, exported: (),
) -> dict[str, Part]:
    """Stop all servers, take what has changed, and let them go on; `timeout` seconds at most.

    `lacks` says which media an export names that nobody holds; a server where there are some gives everything.

    Raises:
        ServerMissing: one did not answer in time, or calls were under way for too long. The others go on.
        Fenced: another coordinator has taken a server over.
    """
    deadline = clock() + timeout

    def left() -> float:
        return max(0.05, deadline - clock())

    def take(remote: Remote) -> Part:
        known = since.get(remote.name, Since())
        exported = remote.export(lineage=known.lineage, mark=known.mark, timeout=left())
        if known != Since() and lacks(remote.name, exported):
            exported = remote.export(timeout=left())
        return Part(remote.status(timeout=left()), exported)

    with stopped(fleet, left, within=timeout):
        return together(take, [remote for role in STOPPING for remote in fleet.get(role, ())])


@contextmanager
def stopped(
    fleet: Mapping[Role, Sequence[Remote]], left: Callable[[], float], *, within: float
) -> Generator[None]:
    """Have all servers stopped for as long as the block runs; `left` gives the seconds that stopping may still take.

    Raises as `cut` does.
    """
    told: list[Remote] = []

    def stop(remote: Remote) -> None:
        # The server gives up before we stop listening: else it might stop for good when nobody waits.
        remote.quiesce(timeout=0.9 * left(), wait=left())

    try:
        for role in STOPPING:
            told += fleet.get(role, ())
            together(stop, fleet.get(role, ()))
        yield
    except BaseException as error:
        _raise_with(error, _release(fleet, told, within=within))
        raise
    if stuck := _release(fleet, told, within=within):
        raise ServerMissing(
            f"Not every server goes on after a cut: {'; '.join(map(str, stuck))}", servers=_servers_of(stuck)
        )


def together(ask: Callable[[Remote], _T], remotes: Sequence[Remote]) -> dict[str, _T]:
    """Ask several servers at once, and return each one's answer by its name.

    Raises:
        ServerMissing: one or more did not answer; all of these are named.
        UnbrokenError: what else one of them raised.
    """
    if not remotes:
        return {}
    with ThreadPoolExecutor(len(remotes), thread_name_prefix="unbroken-gym") as pool:
        asked: dict[str, Future[_T]] = {remote.name: pool.submit(ask, remote) for remote in remotes}
    failed = [error for future in asked.values() if (error := future.exception()) is not None]
    if not failed:
        return {name: future.result() for name, future in asked.items()}
    missing: list[ServerMissing] = []
    for error in failed:
        if not isinstance(error, ServerMissing):
            others = [other for other in failed if other is not error]
            if others:  # one is raised; what the others said may be the cause
                _say(f"besides: {'; '.join(dict.fromkeys(map(str, others)))}")
            raise error
        missing.append(error)
    if len(missing) == 1:
        raise missing[0]
    raise ServerMissing(
        " ".join(error.message for error in missing), hint=missing[0].hint, servers=_servers_of(missing)
    )


def release(fleet: Mapping[Role, Sequence[Remote]]) -> None:
    """Open all servers.

    Raises:
        ServerMissing: some could not be told so.
        Fenced: another coordinator has taken a server over.
    """
    every = [remote for remotes in fleet.values() for remote in remotes]
    stuck = _release(fleet, every, within=RELEASE_WITHIN)
    if stuck:
        raise stuck[0]


def _release(
    fleet: Mapping[Role, Sequence[Remote]], told: Sequence[Remote], *, within: float
) -> list[UnbrokenError]:
    """Open servers in their order, and return what went wrong. Nobody is left out because of another."""
    failed: list[UnbrokenError] = []

    def start(remote: Remote) -> UnbrokenError | None:
        try:
            remote.release(timeout=min(within, RELEASE_WITHIN))
        except UnbrokenError as error:
            return error
        return None

    for role in STARTING:
        remotes = [remote for remote in fleet.get(role, ()) if remote in told]
        failed += [error for error in together(start, remotes).values() if error is not None]
    return failed


def _raise_with(error: BaseException, stuck: Sequence[UnbrokenError]) -> None:
    """Raise an error of the cut with the servers that could not be opened again, as far as they are others.

    An error that names no servers stays what it is, for whoever catches it; they are said beside it.
    """
    if not isinstance(error, ServerMissing):
        more = [s for s in stuck if not isinstance(s, Fenced)]
        if more:
            _say(f"not open again: {'; '.join(map(str, more))}")
        return
    more = [s for s in stuck if not isinstance(s, Fenced) and not set(_servers_of([s])) <= set(error.servers)]
    calls = f" Under way: {'; '.join(error.names)}." if isinstance(error, Declined) and error.names else ""
    told = f" Not open again: {'; '.join(map(str, more))}" if more else ""
    if calls or told:
        raise ServerMissing(
            f"{error.message}{calls}{told}", hint=error.hint, servers=(*error.servers, *_servers_of(more))
        ) from error


def _servers_of(errors: Sequence[UnbrokenError]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for e in errors if isinstance(e, ServerMissing) for name in e.servers))


def _say(text: str) -> None:
    say(f"unbroken: {text}")
