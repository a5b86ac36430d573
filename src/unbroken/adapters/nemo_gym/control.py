"""What a coordinator and a server say to each other: `POST /.unbroken/<operation>`, msgpack both ways.

A server that will not do it answers 4xx with a `Refusal` and has done nothing. Every operation but `status`, `sessions`,
`digests` and `adopt` needs the epoch that `adopt` gave; an older one is refused (`fenced`), so that of two
trainers only the newer is obeyed.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

VERSION = "1.0.0"
"""Of the protocol: see `protocol`. Another major number is refused on either side."""

Role: TypeAlias = Literal["resources", "agent", "model"]
Phase: TypeAlias = Literal["closed", "restoring", "open", "quiesced"]
Capability: TypeAlias = Literal[
    "snapshot", "snapshot_with_exclusions", "replay", "drain_only", "restart_only", "stateless"
]
Tier: TypeAlias = Literal["newest", "older", "replayed", "fresh", "refused"]
"""How a session came back: its newest state and the calls since; an older one and more calls; its first call and all
others, each result compared; not at all, because there was none; not at all, although there was one."""
Refused: TypeAlias = Literal[
    "token", "fenced", "busy", "unknown session", "bad cookie", "stale attempt", "lost session", "closed", "format", "other"
]  # fmt: skip
"""Why something was not done, in one word that a program can act on; also the value of the header `REFUSED`."""
LOST: frozenset[Refused] = frozenset({"lost session", "unknown session", "bad cookie"})
"""Refusals after which what is kept of a rollout leads nowhere: it has to begin anew."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: Refused
    error: str
    """One sentence, and the next step."""
    names: tuple[str, ...] = ()
    """The calls, sessions or places it is about."""


class Nothing(msgspec.Struct, frozen=True):
    """No arguments, or no answer beyond "done"."""


class InFlight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that was not answered yet. `server` is whom an agent asked."""

    path: str
    id: str = ""
    rollout: str = ""
    session: str = ""
    server: str = ""
    seconds: float = 0.0


class Recovered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one session, or one rollout, came back. `redone` counts calls that were executed again."""

    id: str
    tier: Tier
    redone: int = 0
    reasons: tuple[str, ...] = ()
    """One line for each better tier that failed, and for each result that was another than recorded."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a server came back. Only sessions that are worth a word are listed: all that are not `newest`, or were redone."""

    source: Literal["nothing", "log", "checkpoint"] = "nothing"
    sessions: int = 0
    rollouts: int = 0
    redone: int = 0
    listed: tuple[Recovered, ...] = ()
    in_doubt: tuple[InFlight, ...] = ()
    """Calls that had begun when the last process ended, and were not answered. Who made them makes them again."""
    notes: tuple[str, ...] = ()
    """A torn last line that was trimmed, a damaged line that was left out, …"""
    seconds: float = 0.0


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of a server's tool registry: a route, or a tool over MCP. `schema` is a digest of what it takes."""

    name: str
    path: str
    method: str = "POST"
    schema: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    protocol: str = VERSION
    role: Role
    name: str
    class_name: str
    phase: Phase
    capability: Capability = "stateless"
    exclusions: tuple[str, ...] = ()
    """"<attribute>: <why it is left out>"."""
    lineage: str = ""
    mark: int = 0
    """Grows with every change; `export` gives what has changed since one."""
    committed: int = 0
    """The highest mark of this lineage that a trainer has called durable (`committed`), over restarts of the server."""
    recovered_mark: int = 0
    """Up to which mark this process has found changes in its log."""
    first_mark: int = 0
    """Where this process began to count: above all that a former one may have given. A mark above `recovered_mark` and below
    this one was given by a process whose log has lost its end."""
    epoch: int = 0
    pid: int = 0
    config_hash: str = ""
    versions: dict[str, str] = {}
    sessions: int = 0
    rollouts: int = 0
    in_flight: tuple[InFlight, ...] = ()
    held: tuple[InFlight, ...] = ()
    """Calls that wait for a session that is being given away, by `surrender`."""
    recovery: Recovery = Recovery()
    tools: tuple[Tool, ...] = ()
    cache: dict[str, str] = {}
    """What sessions share, by attribute, in a few words."""
    model_calls: int = 0
    """How many answers an agent has got from model servers and not from its log, in this process."""
    replayed: int = 0
    """How many it has given from its log."""
    unused: tuple[str, ...] = ()
    """Answers in its log that a finished rollout did not ask for again: "<rollout> <server> <path>"."""


class Adopt(msgspec.Struct, frozen=True, kw_only=True):
    run: str


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int


class Quiesce(msgspec.Struct, frozen=True, kw_only=True):
    """Let nothing in (resources, model) or out (agent), and wait until nothing is under way. After `timeout` seconds the
    server opens again and refuses (`busy`), with the names of the calls."""

    timeout: float


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """Give what has changed since `mark` of this `lineage`; of another lineage: everything. Only while quiesced."""

    lineage: str = ""
    mark: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A session's or rollout's record, encoded; empty: it is not kept any more."""

    key: str
    data: bytes


class Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    lineage: str
    mark: int
    complete: bool
    """Whether these are all records; else those that changed since the mark that was asked for."""
    records: list[Record] = []
    shared: bytes = b""
    """What sessions share: an `Encoded`, encoded; empty: there is nothing."""
    media: dict[str, bytes] = {}
    """Images and the like, by digest, that the records name and that were not given before."""


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported up to `mark` is in a durable checkpoint."""

    mark: int


class Prepare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Read these records and say what is wrong with them. Touches nothing; a later `activate` puts them in place."""

    records: list[Record] = []
    shared: bytes = b""
    media: dict[str, bytes] = {}
    config_hash: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A record that cannot be used. Others are not touched by it."""

    key: str
    what: str


class Prepared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    records: int
    problems: tuple[Problem, ...] = ()


class Activate(msgspec.Struct, frozen=True, kw_only=True):
    """Put what was prepared in the place of all that the server has, and write it to its log. It stays closed."""


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """Keep nothing of these rollouts: an agent its log, a resources server their sessions, whose memory is freed."""

    rollouts: list[str]


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    rollout: str = ""
    attempt: int = 0
    revision: int = 0
    status: str = "open"
    digest: str = ""
    bytes: int = 0
    last: str = ""
    """The path of its newest call."""


class Sessions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sessions: list[SessionSummary] = []


class Surrender(msgspec.Struct, frozen=True, kw_only=True):
    """Give a session away to the server at the address `to`. Calls to it wait until `settle`, and no longer than `lease`
    seconds: whoever asked for it may have died. Then they go on here, and a late word that it has moved is refused."""

    session: str
    to: str
    lease: float = 600.0


class Receive(msgspec.Struct, frozen=True, kw_only=True):
    """Take a session over; it is live, and in the log, when this is answered."""

    record: bytes
    media: dict[str, bytes] = {}


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """The session lives elsewhere now: calls that waited are redirected. Not `moved`: it stays, and they go on."""

    session: str
    moved: bool


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Tells a model server the version of its policy, for its answers to carry."""

    version: str


OPERATIONS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "status": (Nothing, Status),
    "adopt": (Adopt, Epoch),
    "quiesce": (Quiesce, Nothing),
    "export": (Export, Exported),
    "release": (Nothing, Nothing),
    "committed": (Committed, Nothing),
    "prepare": (Prepare, Prepared),
    "activate": (Activate, Recovery),
    "drop": (Drop, Nothing),
    "sessions": (Nothing, Sessions),
    "digests": (Nothing, Sessions),
    "surrender": (Surrender, Record),
    "receive": (Receive, Nothing),
    "settle": (Settle, Nothing),
    "policy": (Policy, Nothing),
}
"""Operation -> what it takes and what it answers. `release` opens a server again, whatever it was."""
FREE = frozenset({"status", "adopt", "sessions", "digests"})
"""Operations that need no epoch: they change nothing, or give one."""


class Refuses(Exception):
    """Raised on the serving side to answer with a `Refusal`."""

    def __init__(self, kind: Refused, error: str, *, names: tuple[str, ...] = ()) -> None:
        super().__init__(error)
        self.refusal = Refusal(kind=kind, error=error, names=names)
