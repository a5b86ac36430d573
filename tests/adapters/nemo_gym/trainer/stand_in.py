"""Servers as NeMo Gym's are, without NeMo Gym: an agent, a resources server and a model, over real HTTP in threads.

They speak the control protocol with real records, and their gates are those of real servers. An agent writes down what it
was told and answers a rollout that is asked for again from there; a resources server holds a session per rollout; a model
counts its calls and can be held up.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import httpx
import msgspec

from unbroken.adapters.nemo_gym import control, records, words
from unbroken.adapters.nemo_gym.control import InFlight, Record, Refuses
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import Answer, Encoded, RolloutRecord, SessionRecord
from unbroken.adapters.nemo_gym.serving.controls import check_epoch
from unbroken.adapters.nemo_gym.serving.gate import Gate

TOKEN = "a token for tests"
Reply = tuple[int, dict[str, str], bytes]


class Crash(Exception):
    """Makes a server close the connection without an answer, as a killed one does."""


class Door:
    """The gate of real servers, for threads."""

    def __init__(self) -> None:
        self._gate = Gate()

    @property
    def is_open(self) -> bool:
        return self._gate.is_open

    @contextmanager
    def passing(self, what: InFlight) -> Generator[None]:
        inside = self._gate.passing(what)
        self._done(inside.__aenter__())
        try:
            yield
        finally:
            self._done(inside.__aexit__(None, None, None))

    def drain(self, timeout: float) -> None:
        self._done(self._gate.drain(timeout))

    def open(self) -> None:
        self._done(self._at_once(self._gate.open))

    def end_drains(self) -> None:
        self._done(self._at_once(self._gate.end_drains))

    def _done(self, what: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(what, _loop()).result()

    async def _at_once(self, what: Callable[[], None]) -> None:
        what()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the one loop, in a thread, in which all gates are."""
    found = asyncio.new_event_loop()
    threading.Thread(target=found.run_forever, daemon=True).start()
    return found


class StandIn:
    """One server. `role` decides what it answers beside the control protocol."""

    role: control.Role = "resources"
    class_name = "StandIn"

    def __init__(self, name: str, *, port: int = 0) -> None:
        self.name = name
        self.lineage = uuid.uuid4().hex
        self.epoch = 0
        self.mark = 0
        self.committed = 0
        self.recovered_mark = 0
        self.first_mark = 0
        self.phase: control.Phase = "open"
        self.door = Door()
        self.config_hash = "as it was"
        self.capability: control.Capability = "snapshot"
        self.exclusions: tuple[str, ...] = ()
        self.recovery = control.Recovery()
        self.kept: dict[str, Any] = {}
        """Records by key."""
        self.changed: dict[str, int] = {}
        self.media: dict[str, bytes] = {}
        """By digest: what records may name. Each is given once, at the mark at which a record has named it first."""
        self.media_marks: dict[str, int] = {}
        self.asked: list[str] = []
        """Control operations, in order."""
        self.committed_marks: list[int] = []
        self.spoilt: set[str] = set()
        """Records that `prepare` finds a problem in."""
        self.hearing = threading.Event()
        """While it is cleared, nothing but `status` is answered; what was asked meanwhile is not done."""
        self.hearing.set()
        self.before_control: Callable[[str, int], None] = lambda operation, number: None
        """Called before a control operation, with how often it was asked for."""
        self._prepared: list[Record] = []
        self._connections: set[socket.socket] = set()
        self._guard = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler_of(self))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End as a killed process does: nobody is answered any more."""
        self._server.shutdown()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def keep(self, key: str, record: Any) -> None:
        """Keep a record, or another state of one."""
        with self._guard:
            self.kept[key] = record
            self.mark += 1
            self.changed[key] = self.mark
            for digest in Media.named(records.encode(record)):
                self.media_marks.setdefault(digest, self.mark)

    def passing(self, what: InFlight) -> AbstractContextManager[None]:
        """Be inside the gate, once it is open."""
        return self.door.passing(what)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Answer a request that is none of control."""
        raise NotImplementedError

    # The control protocol.

    def obey(self, operation: str, headers: dict[str, str], body: bytes) -> Reply:
        self.asked.append(operation)
        self.before_control(operation, self.asked.count(operation))
        try:
            if headers.get(words.CONTROL) != TOKEN:
                raise Refuses("token", "The control token is not this server's.")
            takes, _ = control.OPERATIONS[operation]
            if operation not in control.FREE and headers.get(words.EPOCH) != str(self.epoch):
                raise Refuses("fenced", f"Epoch {headers.get(words.EPOCH)} was given and {self.epoch} holds.")
            if operation != "status" and not self.hearing.is_set():
                self.hearing.wait()
                raise Crash
            handler = cast("Callable[[Any], msgspec.Struct] | None", getattr(self, f"do_{operation}", None))
            if handler is None:
                raise Refuses("other", f"This server has no operation {operation!r}.")
            answer = handler(msgspec.msgpack.decode(body, type=takes))
        except Refuses as refused:
            status = {"token": 403, "fenced": 409, "busy": 409, "format": 400}.get(refused.refusal.kind, 422)
            head = {words.REFUSED: refused.refusal.kind, "content-type": "application/msgpack"}
            return status, head, msgspec.msgpack.encode(refused.refusal)
        return 200, {"content-type": "application/msgpack"}, msgspec.msgpack.encode(answer)

    def do_status(self, _: control.Nothing) -> control.Status:
        sessions = len(self.kept) if self.role == "resources" else 0
        return control.Status(
            role=self.role, name=self.name, class_name=self.class_name, phase=self.phase,
            capability=self.capability, exclusions=self.exclusions, lineage=self.lineage, mark=self.mark,
            committed=self.committed, recovered_mark=self.recovered_mark, first_mark=self.first_mark,
            epoch=self.epoch, config_hash=self.config_hash, recovery=self.recovery,
            sessions=sessions, rollouts=len(self.kept) - sessions,
        )  # fmt: skip

    def do_adopt(self, _: control.Adopt) -> control.Epoch:
        self.epoch += 1
        self.door.end_drains()
        return control.Epoch(epoch=self.epoch)

    def do_quiesce(self, given: control.Quiesce) -> control.Nothing:
        epoch = self.epoch
        try:
            self.door.drain(given.timeout)
        finally:
            check_epoch(epoch, self.epoch)
        self.phase = "quiesced"
        return control.Nothing()

    def do_release(self, _: control.Nothing) -> control.Nothing:
        self.phase = "open"
        self.door.open()
        return control.Nothing()

    def check_quiesced(self) -> None:
        if self.phase != "quiesced" or self.door.is_open:
            raise Refuses(
                "other", f"The server is {self.phase}, and is only read while quiesced. Quiesce it first."
            )

    def do_export(self, given: control.Export) -> control.Exported:
        self.check_quiesced()
        with self._guard:
            complete = given.lineage != self.lineage or given.mark > self.mark
            keys = [k for k, at in self.changed.items() if complete or at > given.mark]
            found = [
                Record(key=k, data=records.encode(self.kept[k]) if k in self.kept else b"") for k in keys
            ]
            return control.Exported(
                lineage=self.lineage, mark=self.mark, complete=complete,
                records=[r for r in found if r.data or not complete],
                media={d: self.media[d] for d, at in self.media_marks.items() if complete or at > given.mark},
            )  # fmt: skip

    def do_committed(self, given: control.Committed) -> control.Nothing:
        self.committed_marks.append(given.mark)
        self.committed = max(self.committed, given.mark)
        return control.Nothing()

    def do_prepare(self, given: control.Prepare) -> control.Prepared:
        problems = tuple(control.Problem(key=k, what="its seal does not fit") for k in self.spoilt)
        self._prepared = [record for record in given.records if record.key not in self.spoilt]
        return control.Prepared(records=len(given.records), problems=problems)

    def do_activate(self, _: control.Activate) -> control.Recovery:
        self.check_quiesced()
        with self._guard:
            gone = set(self.kept)
            self.kept = {record.key: self.read(record.data) for record in self._prepared}
            self.mark += 1
            self.changed = dict.fromkeys(gone | self.kept.keys(), self.mark)
        self.recovery = control.Recovery(source="checkpoint", sessions=len(self.kept))
        return self.recovery

    def do_drop(self, given: control.Drop) -> control.Nothing:
        with self._guard:
            for key in [k for k, r in self.kept.items() if self.rollout_of(r) in given.rollouts]:
                del self.kept[key]
                self.mark += 1
                self.changed[key] = self.mark
        return control.Nothing()

    def do_sessions(self, _: control.Nothing) -> control.Sessions:
        with self._guard:
            return control.Sessions(
                sessions=[
                    control.SessionSummary(
                        id=k,
                        rollout=self.rollout_of(r),
                        attempt=r.attempt,
                        digest=self.digest(r),
                        revision=len(r.answers) if self.role == "agent" else r.revision,
                    )
                    for k, r in self.kept.items()
                ]
            )

    do_digests = do_sessions

    def read(self, data: bytes) -> Any:
        return records.session(data)

    def rollout_of(self, record: Any) -> str:
        return str(record.rollout)

    def digest(self, record: Any) -> str:
        return "" if record.state is None else bytes(record.state.data).decode()


class Resources(StandIn):
    """Holds a number for each session; a step adds to it, and so does the count of steps: order and number of calls show."""

    class_name = "CounterResourcesServer"

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        given = json.loads(body)
        session = str(given["session"])
        with self.passing(InFlight(path=path, session=session)):
            if path == "/seed_session":
                self.put(session, {"total": int(given["seed"]), "steps": 0})
                return _json(200, {})
            record = self.kept.get(session)
            if record is None:
                return _json(409, {"detail": "no such session"}, **{words.REFUSED: "lost session"})
            state = json.loads(record.state.data)
            if path == "/step":
                state = {
                    "total": (3 * state["total"] + int(given["add"])) % 100_003,
                    "steps": state["steps"] + 1,
                }
                self.put(session, state)
                return _json(200, state)
            return _json(200, {"reward": state["total"] / 1000 + state["steps"]})

    def put(self, session: str, state: dict[str, int]) -> None:
        """Let a session have this state."""
        data = json.dumps(state).encode()
        encoded = Encoded(form="json", data=data, digest=data.decode(), seal=b"")
        self.keep(session, SessionRecord(id=session, rollout=session, state=encoded, state_revision=0))

    def do_surrender(self, given: control.Surrender) -> Record:
        if given.session not in self.kept:
            raise Refuses("unknown session", f"There is no session {given.session}.")
        return Record(key=given.session, data=records.encode(self.kept[given.session]))

    def do_receive(self, given: control.Receive) -> control.Nothing:
        record = records.session(given.record)
        if record.id in self.spoilt:
            raise Refuses("other", "It cannot be read.")
        self.keep(record.id, record)
        return control.Nothing()

    def do_settle(self, given: control.Settle) -> control.Nothing:
        if given.moved:
            self.kept.pop(given.session)
        return control.Nothing()


class Model(StandIn):
    """Answers by what it is asked. It counts its calls, and `before` may hold one up."""

    role: control.Role = "model"
    class_name = "ScriptedModel"

    def __init__(self, name: str, *, port: int = 0) -> None:
        self.calls: Counter[str] = Counter()
        self.policies: list[str] = []
        self.before: Callable[[str, int], None] = lambda rollout, call: None
        super().__init__(name, port=port)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        given = json.loads(body)
        with self.passing(InFlight(path=path, rollout=given["rollout"])):
            with self._guard:
                self.calls[given["rollout"]] += 1
                number = self.calls.total()
            self.before(given["rollout"], number)
            add = (7 * int(given["prompt"]) + int(given["turn"]) + int(1000 * given["weight"])) % 997
            return _json(200, {"add": add})

    def do_policy(self, given: control.Policy) -> control.Nothing:
        self.policies.append(given.version)
        return control.Nothing()


class Agent(StandIn):
    """Seeds, plays `turns` turns and verifies. What it is told it writes down, and is told only once."""

    role: control.Role = "agent"
    class_name = "SimpleAgent"

    def __init__(
        self, name: str, *, resources: StandIn, model: StandIn, turns: int = 2, port: int = 0
    ) -> None:
        self.resources, self.model, self.turns = resources, model, turns
        self.address = ""
        """Of the resources server, where it is not in this process."""
        self.runs: list[tuple[str, int]] = []
        """Every /run that came: rollout and attempt."""
        self.instead: Callable[[str, int], Reply | None] = lambda rollout, attempt: None
        """May answer a /run in another way."""
        self._running: dict[str, threading.Lock] = {}
        super().__init__(name, port=port)

    def read(self, data: bytes) -> RolloutRecord:
        return records.rollout(data)

    def rollout_of(self, record: RolloutRecord) -> str:
        return record.id

    def digest(self, record: RolloutRecord) -> str:
        return str(len(record.answers))

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        row = json.loads(body)
        rollout, attempt = str(row[words.ROLLOUT_KEY]), int(row[words.ATTEMPT_KEY])
        with self._guard:
            self.runs.append((rollout, attempt))
            running = self._running.setdefault(rollout, threading.Lock())
        instead = self.instead(rollout, attempt)
        if instead is not None:
            return instead
        with self._guard:
            record = self.kept.get(rollout)
            if record is not None and attempt < record.attempt:
                return _json(409, {"detail": "an older attempt"}, **{words.REFUSED: "stale attempt"})
            if record is None or attempt > record.attempt:
                answers = [] if record is None else record.answers
                status, result = (0, b"") if record is None else (record.status, record.result)
                record = RolloutRecord(
                    id=rollout,
                    attempt=attempt,
                    body=body,
                    answers=list(answers),
                    status=status,
                    result=result,
                )
        self.keep(rollout, record)
        with running:
            if not record.status:
                record.result = self._play(row, record)
                record.status = 200
                self.keep(rollout, record)
        return 200, {"content-type": "application/json"}, record.result

    def _play(self, row: dict[str, Any], record: RolloutRecord) -> bytes:
        rollout = record.id
        self._told(record, "seed", self.resources, "/seed_session", session=rollout, seed=row["prompt"])
        state: dict[str, Any] = {}
        for turn in range(self.turns):
            asked = {
                "rollout": rollout,
                "prompt": row["prompt"],
                "turn": turn,
                "weight": row.get("weight", 0.0),
            }
            answer = self._told(record, f"model-{turn}", self.model, "/v1/responses", **asked)
            state = self._told(
                record, f"step-{turn}", self.resources, "/step", session=rollout, add=answer["add"]
            )
        reward = self._told(record, "verify", self.resources, "/verify", session=rollout)["reward"]
        return json.dumps({"reward": reward, "response": {"state": state, "prompt": row["prompt"]}}).encode()

    def _told(
        self, record: RolloutRecord, key: str, server: StandIn, path: str, **body: Any
    ) -> dict[str, Any]:
        for answer in record.answers:
            if answer.key == key:
                return cast("dict[str, Any]", json.loads(answer.result))
        if self.kept.get(record.id) is not record:
            raise Crash  # dropped, or another attempt has begun
        with self.passing(InFlight(path=path, rollout=record.id, server=server.name)):
            url = self.address if server is self.resources and self.address else server.url
            reply = httpx.post(f"{url}{path}", json=body, timeout=600, trust_env=False)
            if words.REFUSED in reply.headers:
                with self._guard:  # what it has written down leads nowhere: it begins anew
                    if self.kept.get(record.id) is record:
                        del self.kept[record.id]
                raise Refuses(cast("Any", reply.headers[words.REFUSED]), reply.text)
            record.answers.append(
                Answer(key=key, scope="/run", server=server.name, path=path, status=200, result=reply.content)
            )
            self.keep(record.id, record)
        return cast("dict[str, Any]", reply.json())


class Stack:
    """An agent, a resources server and a model that know each other."""

    def __init__(self, *, turns: int = 2) -> None:
        self.resources = Resources("res")
        self.model = Model("policy")
        self.agent = Agent("agent", resources=self.resources, model=self.model, turns=turns)

    @property
    def servers(self) -> list[StandIn]:
        return [self.agent, self.model, self.resources]

    @property
    def urls(self) -> dict[str, str]:
        return {server.name: server.url for server in self.servers}

    def stop(self) -> None:
        for server in self.servers:
            server.hearing.set()
            server.stop()


def _json(status: int, body: dict[str, Any], **headers: str) -> Reply:
    return status, {"content-type": "application/json", **headers}, json.dumps(body).encode()


def _handler_of(server: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            server._connections.add(self.connection)

        def finish(self) -> None:
            server._connections.discard(self.connection)
            with suppress(OSError):
                super().finish()

        def do_POST(self) -> None:
            try:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
            except OSError:
                self.close_connection = True  # who asked was killed, or this server was
                return
            headers = {key.lower(): value for key, value in self.headers.items()}
            try:
                if self.path.startswith(words.PREFIX) and words.CONTROL in headers:
                    status, head, content = server.obey(self.path.removeprefix(words.PREFIX), headers, body)
                else:
                    status, head, content = server.answer(self.path, headers, body)
            except Refuses as refused:
                status, head, content = _json(
                    503, {"detail": refused.refusal.error}, **{words.REFUSED: refused.refusal.kind}
                )
            except (Crash, httpx.TransportError):
                self.close_connection = True
                return
            try:
                self.send_response(status)
                for key, value in head.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # who asked was killed

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
