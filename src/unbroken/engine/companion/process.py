"""The companion itself: writes what it is handed, says how it went, and ends when nobody is left to hand it
anything.

It is an own program in an own session (no fork of the training: that would keep all its memory and its
locks), and ignores the signals by which people and batch systems end trainings, since it ends by itself.
It imports no framework.

Not promised: anything against SIGKILL to itself; the training is told, and the next start sweeps.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from contextlib import suppress
from importlib import import_module

from unbroken.engine.companion import report
from unbroken.engine.companion.letter import Work, read_letter
from unbroken.engine.companion.post import Post
from unbroken.engine.saving import Inspector, carry_out
from unbroken.engine.saying import say
from unbroken.repo import keys, names
from unbroken.repo.roots import root_of
from unbroken.repo.writer import CheckpointWriter

_NOT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(descriptor: int, trainer: int) -> None:
    """Serve the training `trainer` over the socket `descriptor`, which this process has inherited."""
    for number in _NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    post, end = Post.inherited(descriptor), _end_of(trainer)
    desk = _Desk(post)
    while (message := post.receive(unless=end)) is not None:
        desk.serve(message)


def _end_of(parent: int) -> int | None:
    """Return a descriptor that is readable once the parent has ended; None if there can be none.

    The end of the connection says the same, unless a child of the training keeps it open.
    """
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        return _readable()
    except (AttributeError, OSError):  # Linux before 5.3
        return None
    # Whoever is our parent now was it all the time, so the number was not another's when it was opened.
    return handle if os.getppid() == parent else _readable()


def _readable() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


class _Desk:
    """Carries out one save after the other, with one pen."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._writer: CheckpointWriter | None = None

    def serve(self, message: list[int]) -> None:
        """Carry out one save and report on it."""
        try:
            work, snapshot = read_letter(message)
        finally:
            for descriptor in message:
                os.close(descriptor)

        condemned = work.pen.condemned
        try:
            writer = self._writer_of(work)
            pen = writer.pen
            condemned, suspect = pen.condemned, frozenset(pen.suspect)

            def committed(sick_from_birth: frozenset[str]) -> None:
                renewed = suspect - pen.suspect
                self._say(report.CommittedReport.of(snapshot, sick_from_birth, renewed))

            outcome = carry_out(
                work.order, snapshot, writer, inspect=_inspector(work.inspector), committed=committed
            )
        except Exception as error:  # noqa: BLE001 - the training raises it
            if not self._say(report.FailedReport.of(error, condemned)):
                # Nobody else can tell it any more.
                say(f"unbroken: the last checkpoint of {work.job} was not saved: {error}")
        else:
            self._say(report.DoneReport(sorted(condemned), outcome.unrecorded, outcome.relieved))

    def _writer_of(self, work: Work) -> CheckpointWriter:
        if self._writer is None:
            self._writer = CheckpointWriter.open(
                root_of(work.root).store(work.job),
                work.job,
                work.pen,
                compression=work.compression,
                clock=time.time,
                token=lambda: secrets.token_hex(names.TOKEN_DIGITS // 2),
                signing_key=lambda: keys.signing_key(create=True),
            )
        held = self._writer.pen
        held.births.update(work.pen.births)
        held.suspect.update(work.pen.suspect)
        held.condemned.update(work.pen.condemned)
        return self._writer

    def _say(self, said: report.Report) -> bool:
        """Report to the training; return whether it can still be told."""
        descriptor = os.memfd_create("unbroken-report")
        try:
            os.write(descriptor, report.encode(said))
            with suppress(BrokenPipeError, ConnectionResetError):
                self._post.send([descriptor])
                return True
        finally:
            os.close(descriptor)
        return False


def _inspector(name: str) -> Inspector | None:
    module, _, function = name.partition(":")
    if not name:
        return None
    found: Inspector = getattr(import_module(module), function)
    return found
