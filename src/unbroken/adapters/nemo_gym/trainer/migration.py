"""Moves a live session from one process of a resources server to another, while whoever calls it waits.

The source gives it away and holds its calls back; the target takes it over, into its log; only then does the source send callers
on. Whatever fails before the last step leaves the session where it was. Nobody has it twice: the source answers nothing
for it in between.

Not promised: that a session can be moved whose state cannot be captured; the source refuses that one. Nor that a target with
other settings goes on as the source would have.
"""

from __future__ import annotations

from unbroken.adapters.nemo_gym.control import Status
from unbroken.adapters.nemo_gym.trainer.remote import Declined, Remote
from unbroken.errors import ConfigError, Fenced, ServerMissing, UnbrokenError, UnsupportedFormat

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
    if session in {held.id for held in target.sessions() if held.status == "open"}:
        raise ConfigError(
            f"{target.url} has the session {session} already.",
            hint="See both with: unbroken gym sessions ADDRESS",
        )
    if session not in {held.id for held in source.sessions()}:
        raise ConfigError(
            f"{source.url} has no session {session}.",
            hint=f"See which it has: unbroken gym sessions {source.url}",
        )
    for remote, status in ((source, here), (target, there)):
        remote.epoch = remote.epoch or status.epoch
    record = source.surrender(session, to=target.url)
    try:
        target.receive(record.data)
    except (Declined, ConfigError, Fenced, UnsupportedFormat):  # it has said no: the session stays
        _settle(source, session, moved=False)
        raise
    except ServerMissing as error:
        if not _arrived(target, session, error):
            _settle(source, session, moved=False)
            raise
    _settle(source, session, moved=True)


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


def _arrived(target: Remote, session: str, error: ServerMissing) -> bool:
    """Whether a target whose answer did not come has taken the session over.

    Raises:
        ServerMissing: it cannot be asked. The session must not be opened anywhere before that is known.
    """
    try:
        return session in {held.id for held in target.sessions() if held.status == "open"}
    except UnbrokenError:
        raise ServerMissing(
            f"{target.url} stopped answering while it took the session {session} over; its calls wait at the source.",
            hint="Bring the target back and look with `unbroken gym sessions` whether it has the session;"
            " restarting the source opens it there again.",
            servers=[target.name],
        ) from error


def _settle(source: Remote, session: str, *, moved: bool) -> None:
    for left in reversed(range(SETTLES)):
        try:
            source.settle(session, moved=moved)
        except ServerMissing as error:
            if isinstance(error, Declined) or not left:
                raise
        else:
            return
