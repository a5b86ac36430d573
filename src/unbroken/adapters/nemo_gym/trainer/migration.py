"""Moves a live session from one process of a resources server to another, while whoever calls it waits.

The source gives it away and holds its calls back; the target takes it over, into its log; only then does the source send callers
on. Whatever fails before the last step, an interruption too, leaves the session where it was: the source is told so, and
where it cannot be told, it lets the calls go on by itself after a while. Nobody has it twice: the source answers nothing for it in
between, and a copy at the target is addressed by nobody before the source sends callers there.

Not promised: that a session can be moved whose state cannot be captured; the source refuses that one. Nor that a target with
other settings goes on as the source would have.
"""

from __future__ import annotations

from unbroken.adapters.nemo_gym.control import Record, Status
from unbroken.adapters.nemo_gym.trainer.remote import Declined, Remote
from unbroken.engine.saying import say
from unbroken.errors import ConfigError, Fenced, ServerMissing, UnbrokenError

SETTLES = 3
"""So often the source is told how it ended before a person has to look."""


def migrate(source: Remote, target: Remote, session: str) -> None:
    """Move `session` from the server at `source` to the one at `target`.

    A remote that has adopted nothing acts under the epoch that holds: a trainer that is at work stays the coordinator.

    Raises:
        ConfigError: the two are not the same kind of server, or the source does not have the session.
        ServerMissing: one does not answer, or will not do it; the message says where the session lives.
        Fenced, UnsupportedFormat: another trainer has taken one over; one speaks another protocol.
    """
    here, there = source.status(), target.status()
    _check_pair(source, here, target, there)
    own = {held.id: held for held in source.sessions()}.get(session)
    copy = {held.id: held for held in target.sessions() if held.status == "open"}.get(session)
    # One that does not go further is what an attempt has left that was broken off: the target sees to it.
    if copy is not None and (own is None or own.status != "open" or copy.revision > own.revision):
        raise ConfigError(
            f"{target.url} has the session {session} already.",
            hint=f"See both with: unbroken gym sessions {source.url} {target.url}",
        )
    if own is None:
        raise ConfigError(
            f"{source.url} has no session {session}.",
            hint=f"See which it has: unbroken gym sessions {source.url}",
        )
    for remote, status in ((source, here), (target, there)):
        remote.epoch = remote.epoch or status.epoch
    arrived, record = False, None
    try:
        record = source.surrender(session, to=target.url)
        arrived = _received(target, session, record, source)
        _settle(source, session, moved=True)
    except BaseException as error:
        # Also one that was interrupted, or whose answer did not come: else its calls would wait for nobody. A source that
        # has refused to give it away may be giving it to somebody else, and is told nothing.
        refused = record is None and isinstance(error, UnbrokenError) and not _is_silence(error)
        told = arrived and isinstance(error, UnbrokenError)
        if not refused and not told:
            _settle_after(source, session, moved=arrived)
        raise


def _received(target: Remote, session: str, record: Record, source: Remote) -> bool:
    """Have the target take the session over, and return True once it has. An answer that got lost is looked after."""
    try:
        target.receive(record.data)
    except ServerMissing as error:
        if not _is_silence(error):
            raise
        if not _has(target, session):
            raise ServerMissing(
                f"{error.message} The session {session} stays at {source.url}.",
                hint=error.hint,
                servers=error.servers,
            ) from error
    return True


def _is_silence(error: UnbrokenError) -> bool:
    """Whether no answer came, so that nobody knows whether it was done."""
    return isinstance(error, ServerMissing) and not isinstance(error, Declined)


def _has(target: Remote, session: str) -> bool:
    try:
        return session in {held.id for held in target.sessions() if held.status == "open"}
    except UnbrokenError:
        return False  # nobody is sent there, so whatever it has is a copy


def _settle_after(source: Remote, session: str, *, moved: bool) -> None:
    """Tell the source how it ended, after an error. That it cannot be told either is said beside the error."""
    try:
        _settle(source, session, moved=moved)
    except (ServerMissing, Fenced) as untold:
        if isinstance(untold, Declined):
            return  # it holds nothing back
        say(
            f"unbroken: {source.url} could not be told how the move of {session} ended, and lets its calls go on by"
            f" itself after a while: {untold}"
        )


def _check_pair(source: Remote, here: Status, target: Remote, there: Status) -> None:
    if here.role != "resources" or there.role != "resources":
        other, status = (source, here) if here.role != "resources" else (target, there)
        raise ConfigError(
            f"{other.url} is a server of the role {status.role!r}, and only resources servers hold sessions.",
            hint="Give the addresses of two processes of one resources server.",
        )
    if here.lineage == there.lineage:
        raise ConfigError("Both addresses are the same server.", hint="Give another target.")
    if here.class_name != there.class_name:
        raise ConfigError(
            f"{source.url} is a {here.class_name} and {target.url} a {there.class_name}.",
            hint="Start the target from the source's configuration, at another port and with a log of its own.",
        )


def _settle(source: Remote, session: str, *, moved: bool) -> None:
    for left in reversed(range(SETTLES)):
        try:
            source.settle(session, moved=moved)
        except ServerMissing as error:
            if isinstance(error, Declined) or not left:
                raise
        else:
            return
