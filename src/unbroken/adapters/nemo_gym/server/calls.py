"""Lets calls through to the application, once each, and writes down what they were answered.

A call waits at the door, then for its session; it is refused where the session is unknown here, over, lost, or belongs to somebody
newer; it is answered from the record where its id was answered before; else it is executed, and answered once the log is durable.
Executing goes on when the client has gone: who asks again with the same id gets that answer.

Not promised: order between calls of different sessions (of one session they run one at a time), and answers in pieces: each is
sent when it is complete.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import InFlight, Refused, Refuses
from unbroken.adapters.nemo_gym.records import Began, Call, Ended, SessionRecord
from unbroken.adapters.nemo_gym.server.identity import Named
from unbroken.adapters.nemo_gym.server.migration import Migrations
from unbroken.adapters.nemo_gym.server.participant import Participant
from unbroken.adapters.nemo_gym.server.recovery import VERIFY, call_of
from unbroken.adapters.nemo_gym.server.redo import answered
from unbroken.adapters.nemo_gym.serving.asgi import Reply, Scope, header
from unbroken.errors import StoreError, UnbrokenError

_LOGGER = logging.getLogger("unbroken.nemo_gym")
_NOTICED = 10.0
"""Seconds after which it is said that a call waits for another of its session."""
_PATIENCE = 600.0
"""Seconds after which it is refused."""
_ONE_AT_A_TIME = (
    "Calls of one session run one at a time, so a tool that calls its own server for its own session waits for itself:"
    " have it call the function instead."
)
_NOT_KEPT = frozenset(
    [
        "content-type",
        "set-cookie",
        "content-length",
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "date",
        "server",
    ]
)
"""Headers of an answer that are kept elsewhere, or are of one connection, one process or one moment."""
_STATUS: dict[Refused, int] = {"bad cookie": 401, "closed": 503, "format": 400, "other": 500}
_OF_NOBODY = words.NOT_LOGGED | {"/docs", "/redoc", "/openapi.json"}
"""Paths that are the same for everybody. A browser that looks at the framework's has a cookie, and no session."""
_MOST_ATTEMPT = 1 << 53
"""Attempts are whole numbers that every reader of JSON has exactly."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to: an answer, or what the application raised, for the layers around it to answer."""

    reply: Reply
    raised: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    scope: Scope
    body: bytes
    named: Named
    id: str
    rollout: str
    attempt: int

    @property
    def path(self) -> str:
        return str(self.scope["path"])


class Calls:
    """The way of every call that may change a session."""

    def __init__(
        self, participant: Participant, migrations: Migrations, *, has_seeding: Callable[[], bool]
    ) -> None:
        self._of = participant
        self._migrations = migrations
        self._has_seeding = has_seeding
        self._executing: dict[tuple[str, str], asyncio.Task[Outcome]] = {}
        self._tasks: set[asyncio.Task[Outcome]] = set()
        self._holding: dict[str, InFlight] = {}
        """The call that has a session to itself."""

    async def answer(self, scope: Scope, body: bytes) -> Outcome:
        """Answer a call."""
        try:
            request = self._request(scope, body)
        except Refuses as refused:
            return Outcome(refusal(refused))
        key = request.named.session, request.id
        running = self._executing.get(key) if request.id else None
        if running is not None:
            try:
                self._check_attempt(request)
            except Refuses as refused:
                return Outcome(refusal(refused))
            return _again(await asyncio.shield(running))
        task = self._start(self._refusing(request))
        if request.id:
            self._executing[key] = task
            task.add_done_callback(lambda _: self._executing.pop(key, None))
        # The client may go away, or its request be cancelled with the server; what was begun is ended and written down.
        return await asyncio.shield(task)

    def reading(self, scope: Scope) -> Scope | Reply:
        """Return the request of one who only looks, such that the application knows the session; or where that lives now.

        Raises:
            Refuses: it names a session that is not here, not any more, or somebody else's.
        """
        if scope["path"] in _OF_NOBODY:
            return scope
        request = self._request(scope, b"")
        named = request.named
        if named.fresh or named.token:
            return scope
        self._check_attempt(request)
        found = self._elsewhere(request)
        return self._of.identity.told(scope, named) if found is None else found

    def _request(self, scope: Scope, body: bytes) -> _Request:
        headers = scope["headers"]
        return _Request(
            scope,
            body,
            self._of.identity.of(scope, knows=self._of.book.__contains__),
            header(headers, words.CALL),
            header(headers, words.ROLLOUT),
            _attempt(header(headers, words.ATTEMPT)),
        )

    async def settled(self) -> None:
        """Wait until nothing is being executed."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _start(self, coroutine: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _refusing(self, request: _Request) -> Outcome:
        try:
            return await self._admitted(request)
        except Refuses as refused:
            return Outcome(refusal(refused))
        except StoreError as error:
            return Outcome(refusal(Refuses("closed", f"What is answered here cannot be kept: {error}")))
        except UnbrokenError as error:
            return Outcome(refusal(Refuses("other", str(error))))

    async def _admitted(self, request: _Request) -> Outcome:
        session = request.named.session
        what = InFlight(path=request.path, id=request.id, rollout=request.rollout, session=session)
        while True:
            await self._migrations.settled(session, what)
            async with self._of.gate.passing(what):
                self._of.check()
                self._check_attempt(request)
                if (found := await self._recorded(request)) is not None:
                    return Outcome(found)
                if self._of.capability == "stateless":
                    return await self._without_state(request)
                async with self._turn(what):
                    if self._migrations.holds(session):
                        continue
                    outcome, ticket = await self._in_order(request)
                await self._of.durable(ticket)
                await self._retired(request)
                return outcome

    @asynccontextmanager
    async def _turn(self, what: InFlight) -> AsyncGenerator[None]:
        """Have a session to oneself for a call.

        Raises:
            Refuses: `busy`. Another call has it, and for so long that it may be waiting for this one.
        """
        lock = self._of.lock(what.session)
        said = asyncio.get_running_loop().call_later(_NOTICED, self._say_waiting, what)
        try:
            await asyncio.wait_for(lock.__aenter__(), _PATIENCE)
        except asyncio.TimeoutError:  # an alias of TimeoutError only from Python 3.11 on
            raise Refuses(
                "busy",
                f"{what.path} waited {_PATIENCE:g} s for {self._holder(what.session)}. {_ONE_AT_A_TIME}",
                names=(what.session,),
            ) from None
        finally:
            said.cancel()
        self._holding[what.session] = what
        try:
            yield
        finally:
            del self._holding[what.session]
            await lock.__aexit__(None, None, None)

    def _say_waiting(self, what: InFlight) -> None:
        _LOGGER.warning(
            "unbroken: %s of session %s has been waiting for %s for %g s. %s",
            what.path, what.session, self._holder(what.session), _NOTICED, _ONE_AT_A_TIME,
        )  # fmt: skip

    def _holder(self, session: str) -> str:
        holder = self._holding.get(session)
        if holder is None:
            return "what a trainer does with its session"
        named = f" (call {holder.id})" if holder.id else ""
        return f"{holder.path}{named} of the same session"

    def _check_attempt(self, request: _Request) -> None:
        record = self._of.book.get(request.named.session)
        if record is None or not request.rollout or not record.rollout:
            return
        if record.rollout != request.rollout:
            raise Refuses(
                "unknown session",
                f"Session {record.id} belongs to rollout {record.rollout}, not to {request.rollout}. Seed one of its own.",
                names=(record.id,),
            )
        if request.attempt < record.attempt:
            raise Refuses(
                "stale attempt",
                f"Attempt {record.attempt} of rollout {record.rollout} has this session, and this is attempt "
                f"{request.attempt}. Stop it.",
                names=(record.id,),
            )

    async def _recorded(self, request: _Request) -> Reply | None:
        """Return the answer to a call that is not executed. None, at once: it is."""
        call = self._of.book.answer(request.named.session, request.id)
        if call is not None:
            return await self._replayed(call)
        return self._elsewhere(request)

    def _elsewhere(self, request: _Request) -> Reply | None:
        """Return the redirection to where a session lives; None: it is here, or begins.

        Raises:
            Refuses: it is lost, over, or was never here.
        """
        session = request.named.session
        record = self._of.book.get(session)
        if record is None:
            self._check_known(request)
            return None
        if record.status == "moved":
            return moved(record, request.scope)
        if record.status == "refused":
            raise Refuses(
                "lost session",
                f"Session {session} is lost: {record.reason}. Begin its rollout anew.",
                names=(session,),
            )
        if record.status == "retired" and not self._of.began_stateless:
            raise Refuses(
                "lost session",
                f"Session {session} is over: it was verified, and its memory is free. Seed a new one.",
                names=(session,),
            )
        return None

    def _check_known(self, request: _Request) -> None:
        named = request.named
        if request.path in words.SEEDING or self._of.began_stateless or self._of.capability == "stateless":
            return
        if named.fresh and not self._has_seeding():
            return
        what = "No session is named" if named.fresh else f"Session {named.session} was never seeded here"
        raise Refuses(
            "unknown session",
            f"{what}, and {request.path} needs one. Seed a session, or restore the server's log.",
            names=() if named.fresh else (named.session,),
        )

    async def _replayed(self, call: Call) -> Reply:
        reply = Reply(call.status, _headers(call), await self._of.media.lower_aside(call.result))
        reply.headers.append((words.REPLAYED.encode(), b"1"))
        return reply

    async def _in_order(self, request: _Request) -> tuple[Outcome, int]:
        """Execute a call whose turn it is; return its outcome and the ticket of the last line of it."""
        # Once more: what was known before the lock may have changed while somebody else had it.
        self._of.check()
        self._check_attempt(request)
        if (found := await self._recorded(request)) is not None:
            return Outcome(found), 0
        arguments = await self._of.media.lift_aside(request.body)
        record = self._record(request)
        began = self._began(request, record, arguments)
        self._of.write(record.id, began)  # not waited for: without its end it only tells that there was one
        self._of.pending[began.number] = began
        try:
            outcome, ended = await self._executed(request, began)
            ticket = self._add(record, began, ended)
        finally:
            del self._of.pending[began.number]
        is_over = request.path == VERIFY and not self._retires(request)
        if request.path in words.SEEDING or is_over or self._of.options.log_states:
            ticket = self._of.save_state(record) or ticket
            ticket = self._of.save_shared(only_if_cheap=True) or ticket
        return outcome, ticket

    def _record(self, request: _Request) -> SessionRecord:
        session = request.named.session
        record = self._of.book.get(session) or SessionRecord(id=session)
        record.rollout = record.rollout or request.rollout
        record.attempt = max(record.attempt, request.attempt)
        record.status = "open"
        self._of.states.know(session)
        return record

    def _began(self, request: _Request, record: SessionRecord, arguments: bytes) -> Began:
        of, scope = self._of, request.scope
        of.number += 1
        return Began(
            number=of.number,
            session=record.id,
            rollout=request.rollout,
            attempt=request.attempt,
            id=request.id,
            method=scope["method"],
            path=request.path,
            query=scope.get("query_string", b"").decode("latin-1"),
            arguments=arguments,
            headers=of.identity.kept(scope, request.named),
            started=time.time(),
        )

    async def _executed(self, request: _Request, began: Began) -> tuple[Outcome, Ended]:
        of = self._of
        since = time.monotonic()
        scope = _uncompressed(of.identity.told(request.scope, request.named))
        reply, raised = await answered(of.app, scope, request.body)
        # Its place among the calls is taken now: others may be answered while its images are written.
        of.book.order += 1
        order, seconds = of.book.order, round(time.monotonic() - since, 6)
        result = await self._lifted(reply.body)
        ended = Ended(
            number=began.number,
            session=began.session,
            status=reply.status,
            result=result,
            content_type=reply.header("content-type"),
            cookies=reply.cookies(),
            answer_headers=_kept_headers(reply),
            revision=0,
            order=order,
            seconds=seconds,
        )
        return Outcome(reply, raised), ended

    async def _lifted(self, body: bytes) -> bytes:
        """Return the body of a call that was executed without its images. If they cannot be kept, the server is closed."""
        try:
            return await self._of.media.lift_aside(body)
        except StoreError as error:
            self._of.shut(error)
            raise

    def _add(self, record: SessionRecord, began: Began, ended: Ended) -> int:
        """Put an answered call into log and book; return its ticket."""
        ended = msgspec.structs.replace(ended, revision=record.revision + 1)
        ticket = self._of.write(record.id, ended)
        if record.id not in self._of.book:
            self._of.book.put(record)
        self._of.book.add(record, call_of(began, ended))
        return ticket

    async def _without_state(self, request: _Request) -> Outcome:
        """Execute a call of a server without sessions. Of those only verifications are kept, for those who ask again.

        If this call shows that there are sessions after all, it is written down like any other, though only now.
        """
        of = self._of
        of.states.know(request.named.session)
        record = of.book.get(request.named.session) or SessionRecord(id=request.named.session)
        began = self._began(request, record, request.body)
        outcome, ended = await self._executed(request, began)
        of.states.digest(
            record.id
        )  # has a look whether there is a session now, which changes what the server is
        is_stateless = of.capability == "stateless"
        if is_stateless and not (request.path == VERIFY and request.id):
            of.states.remove(record.id)
            return outcome
        began = msgspec.structs.replace(began, arguments=await self._lifted(began.arguments))
        record = self._record(request)
        of.write(record.id, began)
        ticket = self._add(record, began, ended)
        if is_stateless:
            record.status = "retired"
            of.states.remove(record.id)
        else:
            ticket = of.save_state(record) or ticket
        await of.durable(ticket)
        return outcome

    def _retires(self, request: _Request) -> bool:
        return request.path == VERIFY and (
            self._of.options.retire_after_verify or self._of.capability == "drain_only"
        )

    async def _retired(self, request: _Request) -> None:
        if not self._retires(request):
            return
        of = self._of
        async with of.lock(request.named.session):
            record = of.book.get(request.named.session)
            if record is not None and record.status == "open":
                await of.durable(of.retire(record))


def _attempt(given: str) -> int:
    if not given:
        return 0
    # Its length first: Python refuses to read a number of thousands of digits.
    if not (given.isascii() and given.isdecimal() and len(given) <= len(str(_MOST_ATTEMPT))) or (
        (attempt := int(given)) > _MOST_ATTEMPT
    ):
        shown = given if len(given) <= 32 else f"{given[:32]}…"
        raise Refuses(
            "format",
            f"The attempt {shown!r} is no whole number from 0 to 2**53. Send one in {words.ATTEMPT}, or none.",
        )
    return attempt


def _uncompressed(scope: Scope) -> Scope:
    """Return the request of one who takes an answer only as it is: whoever is given it again may ask for another encoding."""
    return {
        **scope,
        "headers": [(key, value) for key, value in scope["headers"] if key.lower() != b"accept-encoding"],
    }


def refusal(refused: Refuses) -> Reply:
    """Return the answer to a call that was not let through."""
    kind = refused.refusal.kind
    headers = [(b"content-type", b"application/json"), (words.REFUSED.encode(), kind.encode())]
    body = {"error": refused.refusal.error, "kind": kind}
    return Reply(_STATUS.get(kind, 409), headers, json.dumps(body).encode())


def moved(record: SessionRecord, scope: Scope) -> Reply:
    """Return the redirection to where a session lives now."""
    query = scope.get("query_string", b"").decode("latin-1")
    location = record.reason.rstrip("/") + str(scope["path"]) + (f"?{query}" if query else "")
    headers = [
        (b"location", location.encode("latin-1")),
        (words.MOVED.encode(), record.reason.encode("latin-1")),
    ]
    return Reply(307, headers)


def _again(outcome: Outcome) -> Outcome:
    """Return the answer to one who asked while the first one's call was being executed."""
    reply = outcome.reply
    if words.REFUSED.encode() in dict(reply.headers) or reply.header(words.MOVED):
        return outcome
    headers = [*reply.headers, (words.REPLAYED.encode(), b"1")]
    return Outcome(Reply(reply.status, headers, reply.body))


def _headers(call: Call) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", call.content_type.encode("latin-1"))] if call.content_type else []
    headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in call.answer_headers]
    headers += [(b"set-cookie", cookie.encode("latin-1")) for cookie in call.cookies]
    return headers


def _kept_headers(reply: Reply) -> tuple[tuple[str, str], ...]:
    """Return the headers that belong to the answer, and not to the connection that it was given on."""
    named = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in reply.headers)
    return tuple((name, value) for name, value in named if name not in _NOT_KEPT)
