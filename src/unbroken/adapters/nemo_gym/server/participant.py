"""A resources server as one piece: its sessions live, in memory and in the log, and the door in front of them.

The other parts act on it: `calls` adds answered calls, `operations` does what a trainer asks for, `migration` gives sessions away.
Here is what they have in common: what goes to the log, how the server comes back from it, and how the log is kept short.

Invariant: what the log holds is never behind what a client was told. A log that fails closes the server for good: what it
would do from then on could not be brought back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Capability, InFlight, Phase, Recovery, Refuses
from unbroken.adapters.nemo_gym.log import Line, Log
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.options import Options
from unbroken.adapters.nemo_gym.records import (
    Began,
    Built,
    Entry,
    Gone,
    Marked,
    Saved,
    SessionRecord,
    Shared,
    Started,
    State,
    Whole,
)
from unbroken.adapters.nemo_gym.server.book import Book
from unbroken.adapters.nemo_gym.server.identity import Identity
from unbroken.adapters.nemo_gym.server.recovery import Comeback, plan_log
from unbroken.adapters.nemo_gym.server.redo import Redo
from unbroken.adapters.nemo_gym.server.restoring import Restored, Restoring
from unbroken.adapters.nemo_gym.serving.asgi import Application
from unbroken.adapters.nemo_gym.serving.gate import Gate
from unbroken.adapters.nemo_gym.serving.versions import versions
from unbroken.adapters.nemo_gym.sessions.registry import config_hash
from unbroken.adapters.nemo_gym.sessions.states import SessionStates
from unbroken.errors import InternalError, StoreError, UnbrokenError

_T = TypeVar("_T")

_LOGGER = logging.getLogger("unbroken.nemo_gym")
_SLACK = 16 << 20
"""Bytes that a log may have beside twice what lives in it."""
_CHEAP = 64 << 10
_QUICK = 0.005
"""What sessions share is written beside the state of a session as long as it has not more bytes, and is not longer looked for."""


@dataclass(slots=True)
class _Turn:
    """The lock of one session, for as long as somebody has it or waits for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Participant:
    """A resources server and all that is kept of it. `begin` opens its log, `restore` brings it back."""

    def __init__(self, app: Application, *, server: Any, options: Options) -> None:
        self.app = app
        self.server = server
        self.options = options
        self.identity = Identity(server)
        self.gate = Gate(opened=False)
        self.states = SessionStates(
            server, key=options.key, capability=options.capability, exclude=options.exclude
        )
        self.media = Media(options.directory / "media")
        self.book = Book.beginning(after=0)
        self.phase: Phase = "closed"
        self.open_when_restored = options.start == "open"
        self.lineage = ""
        self.epoch = 0
        self.run = ""
        self.number = 0
        self.saved = 0
        """The highest mark that a trainer has called durable."""
        self.marked = 0
        """The highest mark that was given to one."""
        self.recovered_mark = 0
        """That mark, as far as this process has found it in its log."""
        self.pending: dict[int, Began] = {}
        """Calls that are being executed: a log that is rewritten meanwhile has to say so."""
        self.recovery = Recovery()
        self.failure: UnbrokenError | None = None
        self.ambient: dict[str, Any] = {}
        """What every request has in its scope from the application around it."""
        self.restored = asyncio.Event()
        """Not set while sessions are being brought back. Whoever needs them waits."""
        self.turn = asyncio.Lock()
        """Held by whoever reads all sessions, or adds, removes or replaces any for a trainer. A session's own lock is taken before it."""
        self._redo: Redo | None = None
        self.began_stateless = False
        self._log: Log | None = None
        self._turns: dict[str, _Turn] = {}
        self._sizes: dict[str, int] = {}
        self._shared_is_cheap = True
        self.shared: Shared | None = None
        """What sessions share, as it was last written."""
        self.built: Built | None = None
        """What the server was built with when the log began: a later start is built with what it draws anew."""

    # The log.

    @property
    def log(self) -> Log:
        if self._log is None:
            raise InternalError("The log of a server was used before it was opened.")
        return self._log

    @property
    def is_begun(self) -> bool:
        return self._log is not None

    def begin(self) -> None:
        """Open the log.

        Raises:
            RunBusy, StoreError, CorruptObject, Untrusted: it cannot be used.
        """
        self._log = Log.open(self.options.directory, key=self.options.key)

    def write(self, label: str, entry: Entry) -> int:
        """Append to the log; return the ticket to wait for."""
        return self.kept(lambda: self.log.append(label, records.encode(entry)))

    async def durable(self, ticket: int) -> None:
        """Wait until what the ticket stands for is durable."""
        try:
            await self.log.durable(ticket)
        except StoreError as error:
            self.shut(error)
            raise

    def check(self) -> None:
        """Refuse if the server can do nothing any more.

        Raises:
            Refuses: its log failed, or it could not be restored.
        """
        if self.failure is not None:
            raise Refuses("closed", f"This server stays closed: {self.failure}")

    def fail(self, error: BaseException, *, doing: str) -> None:
        """Close the server for good. What it holds is not what it should; its log is, and a restart goes on from it."""
        if not isinstance(error, UnbrokenError):
            _LOGGER.error("unbroken: %s failed while %s", self._name, doing, exc_info=error)
            error = InternalError(
                f"The server failed while {doing}: {error!r}.",
                hint="Start it again: it comes back from its log as it was before.",
            )
        self.shut(error)

    def shut(self, error: UnbrokenError) -> None:
        """Close the server for good, and have nobody wait at its door any more: who comes in is refused."""
        self.failure = self.failure or error
        self.phase = "closed"
        self.gate.open()

    def close(self) -> None:
        """Close the log. What is under way is not answered any more."""
        self.gate.close()
        if self._log is not None:
            log, self._log = self._log, None
            log.close()

    # Coming back.

    async def restore(self) -> None:
        """Bring back what the log has, and open. Never raises: what went wrong is `failure`, and the server stays closed."""
        self.phase = "restoring"
        try:
            await self._restore()
        except UnbrokenError as error:
            self.failure = error
        except Exception as error:  # a server that stays closed without a word would be worse
            _LOGGER.exception("unbroken: %s cannot restore itself", self._name)
            self.failure = InternalError(f"The server could not restore itself: {error!r}.")
        if self.failure is not None:
            _LOGGER.error("unbroken: %s stays closed: %s", self._name, self.failure)
            self.shut(self.failure)
        elif self.open_when_restored:
            self.open()
        else:
            self.phase = "closed"
        self.restored.set()

    async def _restore(self) -> None:
        begun = time.monotonic()
        log = self.log
        capability = self.states.capability
        self.began_stateless = capability == "stateless"
        plan = plan_log(log.lines, log.damaged, capability=capability)
        notes = [*log.notes, *plan.notes]
        log.forget()
        is_new = not plan.lineage
        self.lineage = plan.lineage or uuid.uuid4().hex
        self.epoch, self.run, self.number = plan.epoch, plan.run, plan.number
        self.book = Book.beginning(after=plan.mark)
        self.book.order = plan.order
        self.saved = plan.saved
        self.marked = self.recovered_mark = max(plan.marked, plan.saved)
        self.shared = plan.shared[-1] if plan.shared else None
        self.built = plan.built or self.states.built()
        if plan.built is not None:
            notes += self._as_built(plan.built)
        restored = await self.bring_back(plan.sessions, plan.shared)
        ticket = self.write("", self.started())
        if plan.built is None:
            ticket = self.write("", self.built)
        await self.durable(ticket)
        self.recovery = Recovery(
            source="nothing" if is_new else "log",
            sessions=len(restored.records),
            rollouts=self.book.rollouts(),
            redone=restored.redone,
            listed=tuple(r for r in restored.recovered if r.tier != "newest" or r.redone or r.reasons),
            in_doubt=tuple(plan.in_doubt),
            notes=(*notes, *self.states.notes, *restored.notes),
            seconds=round(time.monotonic() - begun, 3),
        )
        for recovered in restored.recovered:
            if recovered.tier == "refused":
                _LOGGER.warning(
                    "unbroken: session %s of %s is lost: %s",
                    recovered.id, self._name, "; ".join(recovered.reasons),
                )  # fmt: skip

    def _as_built(self, built: Built) -> list[str]:
        """Give the server what it drew when its log began; return what was done."""
        notes = self.states.install_built(built)
        for note in notes:
            _LOGGER.warning("unbroken: %s: %s", self._name, note)
        return list(notes)

    async def bring_back(self, comebacks: list[Comeback], shared: list[Shared]) -> Restored:
        """Make these sessions live, and put them into the book."""
        redo = Redo(self.app, self.identity, self.media, ambient=self.ambient)
        self._redo = redo
        try:
            restored = await Restoring(self.states, redo, earlier=self.log.previous).run(comebacks, shared)
        finally:
            self._redo = None
        for record in restored.records:
            self.book.put(record)
        return restored

    def in_flight(self) -> tuple[InFlight, ...]:
        """Return the calls that are being executed, also those that are executed again to bring a session back."""
        again = None if self._redo is None else self._redo.under_way()
        return self.gate.in_flight() if again is None else (again, *self.gate.in_flight())

    def started(self) -> Started:
        """Return the entry that says who writes the log from here on."""
        return Started(
            lineage=self.lineage,
            server=self._name,
            class_name=type(self.server).__name__,
            config_hash=config_hash(self.server),
            pid=os.getpid(),
            time=time.time(),
            versions=versions(),
            epoch=self.epoch,
            mark=self.book.begun,
            committed=self.saved,
        )

    def open(self) -> None:
        self.phase = "open"
        self.gate.open()

    # What a trainer has.

    def mark_given(self, mark: int) -> int:
        """Note that a trainer is given all changes up to `mark`; return the ticket, 0 if that was known."""
        if mark <= self.marked:
            return 0
        self.marked = mark
        return self.write("", Marked(mark=mark))

    def mark_saved(self, mark: int) -> int:
        """Note that all changes up to `mark` are in a durable checkpoint; return the ticket, 0 if that was known."""
        if not self.saved < mark <= self.book.mark:
            return 0
        self.saved = mark
        return self.write("", Saved(mark=mark))

    # Sessions.

    @property
    def capability(self) -> Capability:
        return self.states.capability

    @property
    def _has_states(self) -> bool:
        """Whether to read sessions out. One that fails does not keep the others from it; but where there are processes
        and the like from the outset, what can be read out is not all there is."""
        return self.states.reads_sessions and self.capability not in {"drain_only", "restart_only"}

    @asynccontextmanager
    async def lock(self, session: str) -> AsyncGenerator[None]:
        """Have a session to oneself for as long as the block runs."""
        turn = self._turns.setdefault(session, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[session]

    def save_state(self, record: SessionRecord) -> int:
        """Read out a session's state and append it to the log; return the ticket, 0 if it has none that can be had.

        Nothing is done for a session that was removed meanwhile: a line of it would bring it back.
        """
        if self.book.get(record.id) is not record:
            return 0
        state = self.states.capture(record.id) if self._has_states else None
        self.book.set_state(record, state)
        if state is None:
            return 0
        return self.write(record.id, State(session=record.id, revision=record.revision, state=state))

    def save_shared(self, *, only_if_cheap: bool = False) -> int:
        """Append what sessions share to the log, if it has changed since the last time; return the ticket or 0."""
        if only_if_cheap and not self._shared_is_cheap:
            return 0
        since = time.perf_counter()
        shared = self.states.shared()
        size = len(shared.data) if shared is not None else 0
        self._shared_is_cheap = size <= _CHEAP and time.perf_counter() - since <= _QUICK
        if shared is None or (self.shared is not None and shared.digest == self.shared.state.digest):
            return 0
        self.shared = Shared(order=self.book.order, state=shared)
        return self.write("", self.shared)

    def retire(self, record: SessionRecord) -> int:
        """Free a session's state, and keep its answers; return the ticket."""
        self.states.remove(record.id)
        self.book.set_state(record, None)
        record.status = "retired"
        return self.write_end(record)

    def give_up(self, record: SessionRecord, reason: str) -> int:
        """Free all of a session but its name: it is lost, for `reason`; return the ticket."""
        self.states.remove(record.id)
        lost = lost_one(record, reason)
        self.book.put(lost)
        _LOGGER.warning("unbroken: session %s of %s is lost: %s", record.id, self._name, reason)
        return self.write_end(lost)

    def remove(self, session: str) -> int:
        """Free all of a session; return the ticket."""
        self.states.remove(session)
        self.book.remove(session)
        self._sizes.pop(session, None)
        self.write(session, Gone(session=session))  # twice, as in `write_end`
        return self.write(session, Gone(session=session))

    def write_end(self, record: SessionRecord) -> int:
        """Write down that a session does not go on here; return the ticket.

        Twice: where one line rots, what stands before it would be taken for the newest, and the session would go on.
        """
        self.write(record.id, Whole(record=record))
        return self.write(record.id, Whole(record=record))

    def forget(self) -> None:
        """Free all sessions. Marks and lineage begin anew; the log is as it was until `rewrite`."""
        for record in self.book:
            self.states.remove(record.id)
        self.book = Book.beginning(after=self.book.mark)
        self.lineage = uuid.uuid4().hex
        self.saved = self.marked = self.recovered_mark = 0
        self._sizes.clear()

    def encoded(self, record: SessionRecord) -> bytes:
        """Return a session's record as it travels."""
        data = records.encode(record)
        self._sizes[record.id] = len(data)
        return data

    # Keeping the log short.

    @property
    def is_long(self) -> bool:
        return self.log.size > 2 * sum(self._sizes.values()) + _SLACK

    async def rewrite(self) -> None:
        """Put a log of what lives in the place of the log, while others go on."""
        try:
            await self.log.rewrite_aside(self._lines())
        except StoreError as error:
            self.shut(error)
            raise

    def _lines(self) -> Iterator[Line]:
        yield Line("", records.encode(self.started()))
        if self.run:
            yield Line("", records.encode(records.Adopted(epoch=self.epoch, run=self.run)))
        if self.saved:
            yield Line("", records.encode(Saved(mark=self.saved)))
        if self.marked:
            yield Line("", records.encode(Marked(mark=self.marked)))
        if self.built is not None:
            yield Line("", records.encode(self.built))
        if self.shared is not None:
            yield Line("", records.encode(self.shared))
        for record in self.book:
            yield Line(record.id, records.encode(Whole(record=record)))
        for began in self.pending.values():
            yield Line(began.session, records.encode(began))

    def kept(self, write: Callable[[], _T]) -> _T:
        """Write something; if that fails, the server is closed for good."""
        try:
            return write()
        except StoreError as error:
            self.shut(error)
            raise

    @property
    def _name(self) -> str:
        return str(getattr(self.server.config, "name", "") or type(self.server).__name__)


def lost_one(record: SessionRecord, reason: str) -> SessionRecord:
    """Return what is kept of a session that is lost: whose it was, and why."""
    return SessionRecord(
        id=record.id,
        rollout=record.rollout,
        attempt=record.attempt,
        revision=record.revision,
        status="refused",
        reason=reason,
    )
