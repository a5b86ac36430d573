"""What is kept of sessions and rollouts, as msgpack: in logs, on the wire, and in a checkpoint.

Two families. *Entries* are lines of a log, written as things happen. *Records* are what a log amounts to: one for a
session of a resources server, one for a rollout of an agent. A trainer carries records without looking into them.

Times are seconds since 1970 (`started`) and durations in seconds; neither is ever compared.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, Union

import msgspec


class Encoded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a session, or of what sessions share.

    `form` is "json" where plain values say all of it, else "pickle". `data` is compressed with zstd if `packed`.
    `seal` is over form, data and digest (`keys.seal`): a pickle is never loaded without it. `digest` is that of the state as
    `sessions.digest` tells it, the same in every process. `classes` names the classes in a pickle, `excluded` the parts
    that were left out ("<place>: <why>"), and `clock` is the monotonic clock at capture, to which clocks in it refer.
    """

    form: Literal["json", "pickle"]
    data: bytes
    digest: str
    seal: bytes
    packed: bool = False
    classes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    python: str = ""
    clock: float = 0.0


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answered call of a session. `revision` counts the session's calls in the order of their execution, from 1.
    `order` counts those of the whole server. `headers` are those of the request that its execution needs; `answer_headers`
    those of the answer beside its type and cookies, for whoever asks again."""

    id: str = ""
    method: str = "POST"
    path: str
    query: str = ""
    arguments: bytes = b""
    status: int
    result: bytes = b""
    content_type: str = "application/json"
    cookies: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    answer_headers: tuple[tuple[str, str], ...] = ()
    revision: int
    order: int
    started: float = 0.0
    seconds: float = 0.0


class SessionRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One session of a resources server.

    `state` is that after call `state_revision` (0: before any). None: it can only be had by replaying the calls.
    `status` "refused": its state is lost or in doubt, for `reason`; "retired": over, and kept for its answers only;
    "moved": it lives at the address `reason`.
    """

    id: str
    rollout: str = ""
    attempt: int = 0
    revision: int = 0
    calls: list[Call] = []
    state: Encoded | None = None
    state_revision: int = -1
    status: Literal["open", "refused", "retired", "moved"] = "open"
    reason: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent was told by another server. `key` names the call inside the rollout; `scope` is the path of the agent's
    own handler that made it. `arguments` are kept of calls to resources servers only: those of a model are the whole
    conversation, every time. `address` is where the session had moved to, if it had: later calls go there too."""

    key: str
    scope: str
    server: str
    path: str
    arguments: bytes = b""
    status: int
    result: bytes = b""
    content_type: str = "application/json"
    cookies: tuple[str, ...] = ()
    policy_version: str = ""
    model: bool = False
    started: float = 0.0
    seconds: float = 0.0
    address: str = ""


class RolloutRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One rollout of an agent. `result` is what `/run` answered with `status`, once it has (0: not yet).

    `incarnation` is drawn at random each time that the rollout begins from nothing, and is a part of the names of its
    calls: what another server has answered to an earlier incarnation is never taken for an answer to this one. `row` is
    a digest of what was asked, without what changes from try to try: another row under the same id is another rollout."""

    id: str
    attempt: int = 0
    path: str = "/run"
    body: bytes = b""
    answers: list[Answer] = []
    status: int = 0
    result: bytes = b""
    stamped: bool = True
    """Whether the trainer gave the id; else it was made up from the row."""
    incarnation: str = ""
    row: str = ""


# Entries of a resources server's log.


class Began(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="began"):
    """A call was let in. `number` pairs it with its end."""

    number: int
    session: str
    rollout: str = ""
    attempt: int = 0
    id: str = ""
    method: str = "POST"
    path: str
    query: str = ""
    arguments: bytes = b""
    headers: dict[str, str] = {}
    started: float = 0.0


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ended"):
    """It was answered."""

    number: int
    session: str
    status: int
    result: bytes = b""
    content_type: str = "application/json"
    cookies: tuple[str, ...] = ()
    answer_headers: tuple[tuple[str, str], ...] = ()
    revision: int
    order: int
    seconds: float = 0.0


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """The state of a session after its call `revision`."""

    session: str
    revision: int
    state: Encoded


class Shared(msgspec.Struct, frozen=True, kw_only=True, tag="shared"):
    """What all sessions share (caches, counters), after call `order` of the server."""

    order: int
    state: Encoded


class Built(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    """What a server was built with when its log began, by attribute: `states` of those that are kept, `digests` of all, and
    why those that are `left` are not kept. `config` is the digest of its settings then."""

    config: str
    digests: dict[str, str]
    states: dict[str, Encoded]
    left: dict[str, str]


class Whole(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """All that is kept of a session, as of its `record.revision`. Stands for every earlier entry of it."""

    record: SessionRecord


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag="gone"):
    """A session is not kept any more: its rollout was dropped."""

    session: str


# Entries of an agent's log.


class Dispatched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="dispatched"):
    rollout: str
    attempt: int = 0
    path: str = "/run"
    body: bytes = b""
    stamped: bool = True
    incarnation: str = ""
    row: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="asked"):
    """A call went out."""

    rollout: str
    key: str
    server: str
    path: str
    model: bool = False
    started: float = 0.0


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered"):
    rollout: str
    answer: Answer


class Finished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finished"):
    rollout: str
    attempt: int = 0
    status: int
    result: bytes = b""


class Dropped(msgspec.Struct, frozen=True, kw_only=True, tag="dropped"):
    """A rollout is not kept any more: it was trained on, and that is in a checkpoint. Or it begins anew."""

    rollout: str


class WholeRollout(msgspec.Struct, frozen=True, kw_only=True, tag="rollout"):
    record: RolloutRecord


# Entries of both.


class Started(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="started"):
    """A process began to write this log. `lineage` names the log for good; `epoch` is that of the newest coordinator.
    `mark` is where this process began to count changes; the next begins above all that it may have counted.
    `committed` is what the newest `Saved` before it said."""

    lineage: str
    server: str
    class_name: str
    config_hash: str
    pid: int
    time: float = 0.0
    versions: dict[str, str] = {}
    epoch: int = 0
    mark: int = 0
    committed: int = 0


class Saved(msgspec.Struct, frozen=True, kw_only=True, tag="saved"):
    """What was exported up to `mark` is in a durable checkpoint, as the trainer has said."""

    mark: int


class Marked(msgspec.Struct, frozen=True, kw_only=True, tag="marked"):
    """All changes up to `mark` lie before this line, and were given to a trainer: a log that has the line has them."""

    mark: int


class Adopted(msgspec.Struct, frozen=True, kw_only=True, tag="adopted"):
    """A coordinator took this server over."""

    epoch: int
    run: str


Entry: TypeAlias = Union[
    Began, Ended, State, Shared, Built, Whole, Gone, Dispatched, Asked, Answered, Finished, Dropped, WholeRollout, Started,
    Saved, Marked, Adopted,
]  # fmt: skip

encode = msgspec.msgpack.Encoder().encode
_entries = msgspec.msgpack.Decoder(Entry)
_sessions = msgspec.msgpack.Decoder(SessionRecord)
_rollouts = msgspec.msgpack.Decoder(RolloutRecord)


def entry(data: bytes) -> Entry:
    """Read a line of a log. Raises msgspec.ValidationError or DecodeError where it is none."""
    return _entries.decode(data)


def session(data: bytes) -> SessionRecord:
    """Read a session's record. Raises msgspec.ValidationError or DecodeError where it is none."""
    return _sessions.decode(data)


def rollout(data: bytes) -> RolloutRecord:
    """Read a rollout's record. Raises msgspec.ValidationError or DecodeError where it is none."""
    return _rollouts.decode(data)
