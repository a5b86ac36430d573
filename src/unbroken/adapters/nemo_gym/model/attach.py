"""What stands around a model server: a gate to drain it by, and the version of its policy in its answers.

A model server is asked with the whole conversation each time and keeps nothing that its answers depend on. vLLM's front
keeps which backend serves which session, for the sake of its cache: that is carried along where it is found. The log
holds little: who the coordinator is, and the version of the policy.

Not promised: that a call which was under way when the server died is not generated again. Its agent sends it again.
"""

from __future__ import annotations

import hmac
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from blake3 import blake3

from unbroken.adapters.nemo_gym import keys, records, words
from unbroken.adapters.nemo_gym.agent.journal import Identity
from unbroken.adapters.nemo_gym.control import (
    Activate,
    Adopt,
    Epoch,
    Export,
    Exported,
    InFlight,
    Nothing,
    Phase,
    Policy,
    Prepare,
    Prepared,
    Problem,
    Quiesce,
    Recovery,
    Refuses,
    Sessions,
    Status,
)
from unbroken.adapters.nemo_gym.log import Line, Log
from unbroken.adapters.nemo_gym.model.pins import pin, pins_of
from unbroken.adapters.nemo_gym.options import Options
from unbroken.adapters.nemo_gym.records import Adopted, Encoded, Shared, Started
from unbroken.adapters.nemo_gym.serving.asgi import Application, Message, Receive, Scope, Send, header
from unbroken.adapters.nemo_gym.serving.controls import Controls, Handler, check_epoch
from unbroken.adapters.nemo_gym.serving.front import Front
from unbroken.adapters.nemo_gym.serving.gate import Gate
from unbroken.adapters.nemo_gym.serving.versions import versions
from unbroken.adapters.nemo_gym.sessions.registry import config_hash
from unbroken.errors import ConfigError, StoreError

_MOST_LINES = 64


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of a model server is carried along."""

    policy_version: str = ""
    pins: dict[str, int] = {}


def attach(server: Any, app: Any, options: Options) -> None:
    """Open the log of a model server, and put the middleware in front of `app`.

    Raises:
        ConfigError: it has several workers.
        RunBusy, StoreError: its log cannot be used.
    """
    if (getattr(server.config, "num_workers", None) or 1) > 1:
        raise ConfigError(
            f"The model server {server.config.name!r} has {server.config.num_workers} workers,"
            " and a control request reaches one of them.",
            hint="Set num_workers: 1, or leave it as NeMo Gym has it: agents can do without.",
        )
    identity = Identity(
        server=str(server.config.name), class_name=type(server).__name__, config_hash=config_hash(server)
    )
    log = Log.open(options.directory, key=options.key)
    try:
        model = Model(server, log, identity, options.key, opened=options.start == "open")
    except BaseException:
        with suppress(StoreError):  # what went wrong first is told
            log.close()
        raise
    controls = Controls(options.token, model.handlers(), lambda: model.epoch)
    app.add_middleware(ModelMiddleware, model=model, controls=controls)


class Model:
    """One model server, as a coordinator sees it."""

    def __init__(
        self, server: object, log: Log, identity: Identity, key: bytes, *, opened: bool = True
    ) -> None:
        self._server = server
        self._log = log
        self._identity = identity
        self._key = key
        self.gate = Gate(opened=opened)
        self.phase: Phase = "open" if opened else "closed"
        self.policy_version = ""
        self.epoch = 0
        self.lineage = uuid.uuid4().hex
        self._waiting: Said | None = None
        self.recovery = self._read()
        if len(log.lines) > _MOST_LINES:
            log.rewrite(Line("", records.encode(entry)) for entry in (self._started(), self._shared()))
        else:
            log.append("", records.encode(self._started()))
        log.forget()

    async def close(self) -> None:
        self._log.close()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "status": self.status,
            "adopt": self.adopt,
            "quiesce": self.quiesce,
            "export": self.export,
            "release": self.release,
            "committed": self.nothing,
            "prepare": self.prepare,
            "activate": self.activate,
            "drop": self.nothing,
            "sessions": self.sessions,
            "digests": self.sessions,
            "policy": self.policy,
        }

    async def status(self, _: Nothing) -> Status:
        return Status(
            role="model",
            name=self._identity.server,
            class_name=self._identity.class_name,
            phase=self.phase,
            lineage=self.lineage,
            epoch=self.epoch,
            pid=os.getpid(),
            config_hash=self._identity.config_hash,
            versions=versions(),
            in_flight=self.gate.in_flight(),
            recovery=self.recovery,
            cache=self._cache(),
        )

    async def adopt(self, arguments: Adopt) -> Epoch:
        self.epoch = epoch = self.epoch + 1
        self._waiting = None  # it was the other trainer's
        self.gate.end_drains()
        ticket = self._log.append("", records.encode(Adopted(epoch=epoch, run=arguments.run)))
        await self._log.durable(ticket)
        return Epoch(epoch=epoch)

    async def policy(self, arguments: Policy) -> Nothing:
        self.policy_version = arguments.version
        await self._log.durable(self._log.append("", records.encode(self._shared())))
        return Nothing()

    async def quiesce(self, arguments: Quiesce) -> Nothing:
        epoch = self.epoch
        try:
            await self.gate.drain(arguments.timeout)
        except Refuses:
            check_epoch(epoch, self.epoch)
            raise
        if self.phase == "open":
            self.phase = "quiesced"
        return Nothing()

    async def release(self, _: Nothing) -> Nothing:
        self.phase = "open"
        self.gate.open()
        return Nothing()

    async def export(self, _: Export) -> Exported:
        self._check_still()
        return Exported(
            lineage=self.lineage, mark=0, complete=True, shared=msgspec.msgpack.encode(self._encoded())
        )

    async def prepare(self, arguments: Prepare) -> Prepared:
        problems = [Problem(key=r.key, what="A model server has no records.") for r in arguments.records]
        self._waiting = Said()
        if arguments.shared:
            try:
                encoded = msgspec.msgpack.decode(arguments.shared, type=Encoded)
                self._waiting = self._decoded(encoded)
            except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
                problems.append(Problem(key="", what=f"What sessions share cannot be used: {error}"))
        return Prepared(records=0, problems=tuple(problems))

    async def activate(self, _: Activate) -> Recovery:
        if self._waiting is None:
            raise Refuses("other", "Nothing was prepared. Send `prepare` first.")
        self._check_still()
        said, self._waiting = self._waiting, None
        missing = pin(self._server, said.pins)
        self.policy_version = said.policy_version
        self.phase = "closed"  # before anything is waited for: another trainer may open it meanwhile
        await self._log.durable(self._log.append("", records.encode(self._shared())))
        notes: tuple[str, ...] = ()
        if missing:
            notes = (
                f"{len(missing)} sessions had a backend that is not there, and get another; no answer depends on it.",
            )
        self.recovery = Recovery(source="checkpoint", sessions=len(said.pins) - len(missing), notes=notes)
        return self.recovery

    async def sessions(self, _: Nothing) -> Sessions:
        return Sessions()

    async def nothing(self, _: msgspec.Struct) -> Nothing:
        return Nothing()

    def _check_still(self) -> None:
        if self.phase == "open" or self.gate.is_open:
            raise Refuses("other", "The model server is open. Send `quiesce` first.")

    def _cache(self) -> dict[str, str]:
        cache = {"policy_version": self.policy_version} if self.policy_version else {}
        pins = pins_of(self._server)
        if pins:
            cache["_session_id_to_client"] = f"{len(pins)} sessions on {len(set(pins.values()))} backends"
        return cache

    def _read(self) -> Recovery:
        found = False
        notes = [*self._log.notes, *(damaged.what for damaged in self._log.damaged)]
        for line in self._log.lines:
            try:
                entry = records.entry(line.payload)
                if isinstance(entry, Shared):
                    self.policy_version = self._decoded(entry.state).policy_version
            except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
                notes.append(str(error))
                continue
            if isinstance(entry, Started):
                found = True
                self.lineage = entry.lineage
            if isinstance(entry, (Started, Adopted)):
                self.epoch = max(self.epoch, entry.epoch)
        return Recovery(source="log" if found else "nothing", notes=tuple(notes))

    def _started(self) -> Started:
        return Started(
            lineage=self.lineage,
            server=self._identity.server,
            class_name=self._identity.class_name,
            config_hash=self._identity.config_hash,
            pid=os.getpid(),
            time=time.time(),
            versions=versions(),
            epoch=self.epoch,
        )

    def _shared(self) -> Shared:
        return Shared(order=0, state=self._encoded())

    def _encoded(self) -> Encoded:
        said = Said(policy_version=self.policy_version, pins=pins_of(self._server))
        data = msgspec.json.encode(said, order="sorted")
        digest = blake3(data).hexdigest()
        return Encoded(
            form="json",
            data=data,
            digest=digest,
            seal=keys.seal(self._key, b"json", data, digest.encode()),
        )

    def _decoded(self, encoded: Encoded) -> Said:
        """Raises ValueError or msgspec's errors where it is none of ours."""
        if encoded.form != "json" or encoded.packed:
            raise ValueError("it is in a form that no model server writes.")
        seal = keys.seal(self._key, b"json", encoded.data, encoded.digest.encode())
        if not hmac.compare_digest(encoded.seal, seal):
            raise ValueError(
                "it was sealed with another key, or changed. Use the UNBROKEN_KEY it was written with."
            )
        return msgspec.json.decode(encoded.data, type=Said)


@dataclass(slots=True, eq=False)
class _Marked:
    """Adds the version of the policy, as it was when the call began, to an answer on its way."""

    send: Send
    version: str

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self.version:
            headers = [*message.get("headers", ()), (words.POLICY.encode(), self.version.encode())]
            message = {**message, "headers": headers}
        await self.send(message)


class ModelMiddleware(Front):
    def __init__(self, app: Application, *, model: Model, controls: Controls) -> None:
        super().__init__(app, controls=controls, close=model.close)
        self._model = model

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        call = InFlight(
            path=scope["path"], id=header(headers, words.CALL), rollout=header(headers, words.ROLLOUT)
        )
        async with self._model.gate.passing(call):
            await self._app(scope, receive, _Marked(send, self._model.policy_version))
