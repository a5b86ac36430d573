"""The calls that an agent makes for a rollout: answered from the log, or made and then written down.

Invariant: an agent sees an answer only after it is durable, and one that is no part of its rollout never: a server that is
dead, broken or refuses stops the rollout. Calls have names that stay the same in every attempt, so that whom they reach twice
answers once.

What is an answer: everything below 500, and the 500 of a tool, which NeMo Gym hands to the model as what the tool said.
What is none: a refusal, any other number from 500 on, and the 500 of a model, of a seeding and of a verification.

Connections that fail are tried again, under the same name, for `patience` seconds. NeMo Gym does so for ever; here the
rollout is then answered with a refusal (`closed`), keeps all that it has, and goes on when it is asked for again. Between two
tries a call is not under way: saves do not wait for a server that is away.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, get_args
from urllib.parse import urljoin, urlsplit

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.agent.answered import AnsweredResponse
from unbroken.adapters.nemo_gym.agent.execution import OWN, Caller, Execution, RolloutStopped
from unbroken.adapters.nemo_gym.agent.headers import HeadersOnce, broken, one_try
from unbroken.adapters.nemo_gym.agent.journal import Journal
from unbroken.adapters.nemo_gym.control import InFlight, Refusal, Refused
from unbroken.adapters.nemo_gym.records import Answer, Asked
from unbroken.adapters.nemo_gym.serving.gate import Gate
from unbroken.engine.saying import say
from unbroken.errors import CorruptObject, ObjectMissing

T = TypeVar("T")

ADDRESS: ContextVar[str] = ContextVar("unbroken_nemo_gym_address", default="")
"""The address to call instead of the configured one."""

PATIENCE = 600.0
_MOST_HOPS = 10
_MOST_UNUSED = 1000
_NO_TOOLS = frozenset({"/verify", *words.SEEDING})
"""Paths whose answer is no tool's: an agent cannot go on with a failure."""


class Response(Protocol):
    """What is used of aiohttp's."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def cookies(self) -> Mapping[str, Any]: ...
    @property
    def url(self) -> Any: ...
    async def read(self) -> bytes: ...


Send = Callable[..., Awaitable[Response]]
"""Takes the name of a server, a path, a method, and what aiohttp takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Who is who, by instance name."""

    own: str
    models: frozenset[str]


@dataclass(slots=True)
class Outgoing:
    """The calls of one agent."""

    journal: Journal
    gate: Gate
    others: Others
    patience: float = PATIENCE
    """Seconds for which a server may stay away."""
    pause: float = 0.5
    """Seconds between two tries to reach one."""
    model_calls: int = 0
    replayed: int = 0
    unused: deque[str] = field(default_factory=lambda: deque[str](maxlen=_MOST_UNUSED))
    _away: set[str] = field(default_factory=set[str])
    """Servers of which it was said that they cannot be reached."""

    async def call(
        self, caller: Caller, send: Send, server: str, path: str, arguments: Mapping[str, Any]
    ) -> AnsweredResponse:
        """Answer a POST of an agent.

        Raises:
            RolloutStopped: the rollout must not go on.
        """
        execution = caller.execution
        execution.check()
        payload = _payload(arguments)
        key = caller.key(server, path, payload)
        answer = self._kept(execution, key)
        if answer is not None:
            self.replayed += 1
            execution.used.add(key)
            return _response(answer)
        if key in execution.pending:  # the same request came twice, because its first connection broke
            return _response(await asyncio.shield(execution.pending[key]))
        target = _Target(path=path, name=execution.call_id(key))
        call = _Call(
            caller=caller,
            key=key,
            server=server,
            path=path,
            payload=payload,
            arguments=arguments,
            target=target,
        )
        pending = execution.pending[key] = asyncio.get_running_loop().create_future()
        try:
            answered = await _until_stopped(execution, self._made(call, send))
        except BaseException as error:
            pending.set_exception(
                RolloutStopped(f"The call to {server}{path} was given up.")
                if isinstance(error, asyncio.CancelledError)
                else error
            )
            pending.exception()  # nobody has to ask for it
            raise
        else:
            pending.set_result(answered)
            return _response(answered)
        finally:
            del execution.pending[key]

    def _kept(self, execution: Execution, key: str) -> Answer | None:
        try:
            return self.journal.answer(execution.rollout, key)
        except (ObjectMissing, CorruptObject) as error:
            execution.fail(
                Refusal(kind="lost session", error=f"An answer that is kept cannot be read: {error}")
            )
            execution.check()
            raise

    async def _made(self, call: _Call, send: Send) -> Answer:
        """Make a call, again and again if need be. Between two tries it is not under way, so that a save can go on."""
        execution = call.caller.execution
        away = 0.0
        while True:
            execution.check()
            began = time.monotonic()
            try:
                async with self._passing(call):
                    execution.check()
                    began = time.monotonic()  # how long the gate was closed is not the server's fault
                    answer = await self._tried(call, send)
                self._away.discard(call.server)
                return answer
            except broken() as error:  # the call is named, so it may be sent again
                away += time.monotonic() - began + self.pause
                self._note_away(call, error, away)
            await asyncio.sleep(self.pause)

    def _passing(self, call: _Call) -> AbstractAsyncContextManager[None]:
        if call.server == self.others.own:
            return nullcontext()  # an agent waits for its own handlers: they pass the gate themselves
        rollout = call.caller.execution.rollout
        return self.gate.passing(InFlight(path=call.path, id=call.id, rollout=rollout, server=call.server))

    def _note_away(self, call: _Call, error: Exception, away: float) -> None:
        """Say once that a server is away; stop the rollout if it has been for too long."""
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if call.server not in self._away:
            self._away.add(call.server)
            say(f"unbroken: {self.others.own}: {call.server} cannot be reached and is waited for ({why})")
        if away >= self.patience:
            call.caller.execution.fail(
                Refusal(
                    kind="closed",
                    error=f"{call.server}{call.path} could not be reached for {self.patience:g} s ({why})."
                    " Start that server, and ask for the rollout again: it goes on where it is.",
                )
            )

    async def _tried(self, call: _Call, send: Send) -> Answer:
        execution = call.caller.execution
        started = time.time()
        began = time.monotonic()
        model = call.server in self.others.models
        if call.server != self.others.own:
            execution.acted |= not model
            if call.key not in execution.made:
                execution.made.add(call.key)
                self.journal.asked(
                    Asked(
                        rollout=execution.rollout, key=call.key, server=call.server, path=call.path,
                        model=model, started=started,
                    )
                )  # fmt: skip
        response, body = await self._exchanged(call, send)
        answer = Answer(
            key=call.key,
            scope=call.caller.scope,
            server=call.server,
            path=call.path,
            arguments=b"" if model or call.server == self.others.own else call.encoded(),
            status=response.status,
            result=body,
            content_type=response.headers.get("Content-Type", "application/octet-stream"),
            cookies=tuple(morsel.OutputString() for morsel in response.cookies.values()),
            policy_version=(response.headers.get(words.POLICY, "") or execution.policy_version)
            if model
            else "",
            model=model,
            started=started,
            seconds=round(time.monotonic() - began, 6),
            address=execution.addresses.get(call.server, ""),
        )
        if not self._counts(call, answer, response.headers.get(words.REFUSED, "")):
            return answer
        await self.journal.answered(execution.rollout, answer)
        self.model_calls += model
        return answer

    def _counts(self, call: _Call, answer: Answer, refused: str) -> bool:
        """Return whether an answer is a part of the rollout. Stops the rollout if it is none of anybody's."""
        execution = call.caller.execution
        execution.check()
        if call.server == self.others.own:
            return (
                not refused and answer.status < 500
            )  # what stopped a handler has stopped the execution, too
        if refused:
            kind: Refused = refused if refused in get_args(Refused) else "other"  # type: ignore[assignment]
            execution.fail(
                Refusal(
                    kind=kind, error=f"{call.server} refused {call.path} ({kind}): {_said(answer.result)}"
                )
            )
        elif answer.status >= 500 and (answer.model or answer.status > 500 or call.path in _NO_TOOLS):
            execution.fail(
                Refusal(
                    kind="other",
                    error=f"{call.server} answered {answer.status} to {call.path}: {_said(answer.result)}",
                )
            )
        execution.check()
        return True

    async def _exchanged(self, call: _Call, send: Send) -> tuple[Response, bytes]:
        """Make the call, follow redirections, and return the last answer with its whole body."""
        execution = call.caller.execution
        target = call.target
        while True:
            address = target.address or execution.addresses.get(call.server, "")
            response, body = await self._sent(call, send, address)
            location = response.headers.get("Location", "")
            moved = response.headers.get(words.MOVED, "")
            if response.status not in {301, 302, 303, 307, 308} or not (location or moved):
                return response, body
            target.hops += 1
            if target.hops > _MOST_HOPS:
                execution.fail(
                    Refusal(
                        kind="other", error=f"{call.server}{call.path} was redirected {target.hops} times."
                    )
                )
                execution.check()
            if moved:  # the session lives there from now on; it is the same call
                execution.addresses[call.server] = moved.rstrip("/")
                target.address = ""
                continue
            url = urlsplit(urljoin(str(response.url), location))
            target.address = f"{url.scheme}://{url.netloc}"
            target.path = url.path + (f"?{url.query}" if url.query else "")
            # Under the same name a server would give the redirection again.
            target.name = f"{call.id}/{target.hops}"
            if response.status < 304:
                target.method = "GET"

    async def _sent(self, call: _Call, send: Send, address: str) -> tuple[Response, bytes]:
        execution, target = call.caller.execution, call.target
        arguments = dict(call.arguments)
        if target.method == "GET":
            for key in ("json", "data"):
                arguments.pop(key, None)
        arguments["allow_redirects"] = False
        headers = {
            **dict(arguments.get("headers") or {}),
            words.ROLLOUT: execution.rollout,
            words.ATTEMPT: str(execution.attempt),
            words.CALL: target.name,
        }
        if call.server == self.others.own:
            headers[OWN] = self.journal.lineage
        arguments["headers"] = HeadersOnce(headers)
        token = ADDRESS.set(address)
        try:
            with one_try():
                response = await send(call.server, target.path, target.method, **arguments)
                return response, await response.read()
        finally:
            ADDRESS.reset(token)


@dataclass(slots=True, kw_only=True)
class _Target:
    """Where a call goes next: other than at first if it was redirected. `address`: empty, that of the server."""

    path: str
    name: str
    method: str = "POST"
    address: str = ""
    hops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    caller: Caller
    key: str
    server: str
    path: str
    payload: Any
    arguments: Mapping[str, Any]
    target: _Target

    @property
    def id(self) -> str:
        return self.caller.execution.call_id(self.key)

    def encoded(self) -> bytes:
        body = self.payload.get("json", self.payload.get("data"))
        if body is None:
            return b""
        try:
            return msgspec.json.encode(body, enc_hook=str)
        except UnicodeEncodeError:  # half a surrogate pair
            return json.dumps(body, separators=(",", ":"), default=str).encode()


def _payload(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what distinguishes a call from others to the same path. Cookies carry the time and do not."""
    payload: dict[str, Any] = {}
    for name in ("json", "data", "params"):
        value = arguments.get(name)
        if value is not None:
            dump = getattr(value, "model_dump", None)
            payload[name] = value if dump is None else dump(exclude_unset=True)
    return payload


def _response(answer: Answer) -> AnsweredResponse:
    return AnsweredResponse(
        status=answer.status,
        body=answer.result,
        content_type=answer.content_type,
        cookies=answer.cookies,
        url=f"http://{answer.server}{answer.path}",
    )


def _said(body: bytes) -> str:
    """Return what an answer says, in short."""
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            said: Any = decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(said, dict):
            return str(said.get("error") or said.get("detail") or said)[:300]
        if isinstance(said, str):
            return said[:300]
    return body[:300].decode("utf-8", "replace")


async def _until_stopped(execution: Execution, work: Coroutine[Any, Any, T]) -> T:
    """Do `work` unless the execution is stopped meanwhile; it is then given up."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(execution.stopped.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            execution.check()
        return await task
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})  # it leaves the gate
