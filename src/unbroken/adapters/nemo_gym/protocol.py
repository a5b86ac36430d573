"""The state of a NeMo Gym environment as one layered document: what people and other programs read.

The layers and field names are those of the published protocol (docs/gym-protocol.md); its JSON Schema is
`schema/gym-state-1.json`. Everything that is ours alone stands under an `extensions` key, in a map called `unbroken`.
In a checkpoint the same facts lie in another form, one that grows with what changed; `view` makes this one of it.

Versions are major.minor.patch. A document of another major version is refused; one of an older minor version
is read, and so is a newer minor one: what it has more is kept out of the typed fields. A document that carries a digest of
itself (`integrity`) is read only if it is still what the digest was computed over.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import msgspec

from unbroken.adapters.nemo_gym import integrity
from unbroken.adapters.nemo_gym.control import VERSION
from unbroken.errors import UnsupportedFormat

SCHEMA_ID = "urn:unbroken:gym-state:1"
"""Names the schema for good. Its last part is the major version."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class ToolCall(msgspec.Struct, kw_only=True):
    """One call of a tool, or of another endpoint of the session, with its result."""

    name: str
    """The path without its slash: the tool's name."""
    arguments: Any = None
    """Decoded where the body is JSON, else text, else {"$bytes": <base64>}; {"$media": <digest>} stands for an image."""
    result: Any = None
    status: int
    """The HTTP status."""
    succeeded: bool
    """Status below 400."""
    started: str = ""
    """ISO 8601, UTC."""
    seconds: float = 0.0
    call_id: str = ""
    revision: int
    """Counts the calls of this session, from 1."""


class VerificationScores(msgspec.Struct, kw_only=True):
    """What the environment's own verification has said so far."""

    reward: float | None = None
    """The final one; None: not verified yet."""
    partial: list[float] = []
    """Rewards of single steps, where the environment gives them."""
    components: dict[str, float] = {}
    """Every other number or truth value beside the reward in the answer."""


class SessionState(msgspec.Struct, kw_only=True):
    context: Any = None
    """What the server holds of this session: plain values as they are, of others {"$object": <class>, "digest": …}."""
    tool_history: list[ToolCall] = []
    verification_scores: VerificationScores = msgspec.field(default_factory=VerificationScores)
    extensions: dict[str, Any] = {}


class Environment(msgspec.Struct, kw_only=True):
    env_id: str
    """The names of the resources servers, joined by "+"."""
    config_hash: str
    session_states: dict[str, SessionState] = {}


class AgentState(msgspec.Struct, kw_only=True):
    policy_state: dict[str, Any] = {}
    """`policy_versions` that its open rollouts have used, `model_calls` answered."""
    exploration_params: dict[str, Any] = {}
    """`temperature`, `top_p` and the like, as the rows ask for them."""
    reward_buffer: list[float] = []
    """Rewards of finished rollouts that are not trained on yet."""
    extensions: dict[str, Any] = {}


class ResourceState(msgspec.Struct, kw_only=True):
    connection_state: dict[str, Any] = {}
    cache_data: dict[str, Any] = {}
    tool_registry: list[dict[str, Any]] = []
    extensions: dict[str, Any] = {}


class Metadata(msgspec.Struct, kw_only=True):
    total_steps: int = 0
    completed_episodes: int = 0
    average_reward: float | None = None
    checkpoint_reason: str = ""
    extensions: dict[str, Any] = {}


class Integrity(msgspec.Struct, kw_only=True):
    """A digest of the document without this entry; see `integrity`."""

    hash_algorithm: str
    hash_value: str
    timestamp: str = ""
    """When it was computed: ISO 8601, UTC."""


class GymState(msgspec.Struct, kw_only=True):
    """The state of a NeMo Gym environment: its sessions, agents and resources servers at one moment."""

    version: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")] = VERSION
    timestamp: str
    """ISO 8601, UTC."""
    environment: Environment
    agents: dict[str, AgentState] = {}
    resources: dict[str, ResourceState] = {}
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    extensions: dict[str, Any] = {}
    integrity: Integrity | None = msgspec.field(default=None, name=integrity.KEY)
    """Of a document that was written out."""


def check_version(version: str) -> None:
    """Refuse a document of another major version.

    Raises:
        UnsupportedFormat: the version is no version, or its major number is another.
    """
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise UnsupportedFormat(
            f"{version!r} is no version of the state of a NeMo Gym environment; this Unbroken reads {VERSION}.",
            hint="Look at the document's `version`: it has to be major.minor.patch.",
        )
    if parts[0] != VERSION.split(".", maxsplit=1)[0]:
        raise UnsupportedFormat(
            f"The state of the NeMo Gym environment has version {version}, and this Unbroken reads {VERSION}.",
            hint="Use the Unbroken that wrote it, or a newer one.",
        )


def read(document: bytes) -> GymState:
    """Read a document in JSON.

    Raises:
        UnsupportedFormat: its version is another, or it is no such document.
        CorruptObject: it was changed since its digest was computed.
    """
    try:
        decoded = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise _none(error) from error
    return of_plain(decoded)


def of_plain(decoded: object) -> GymState:
    """Read a document that was decoded already.

    Raises:
        UnsupportedFormat: its version is another, or it is no such document.
        CorruptObject: it was changed since its digest was computed.
    """
    version = cast("dict[str, object]", decoded).get("version") if isinstance(decoded, dict) else None
    if not isinstance(decoded, dict) or not isinstance(version, str):
        raise _none("it has no `version`")
    check_version(version)
    known = cast("dict[str, Any]", decoded)
    integrity.check(known)
    try:
        return msgspec.convert(known, GymState)
    except msgspec.ValidationError as error:
        raise _none(error) from error


def plain(state: GymState) -> dict[str, Any]:
    """Return a document as plain values, without a digest."""
    made = cast("dict[str, Any]", msgspec.to_builtins(state))
    made.pop(integrity.KEY)
    return made


def write(state: GymState, *, timestamp: str) -> bytes:
    """Return a document in JSON, with a digest of itself that was computed at `timestamp`."""
    made = integrity.sealed(plain(state), timestamp=timestamp)
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    made = msgspec.json.schema(GymState)
    made["$defs"]["GymState"]["required"].insert(
        0, "version"
    )  # has a default for who makes one, not for who reads one
    about = {"$schema": DIALECT, "$id": SCHEMA_ID, "title": f"State of a NeMo Gym environment, {VERSION}"}
    return {**about, **made}


def _none(why: object) -> UnsupportedFormat:
    return UnsupportedFormat(f"This is no state of a NeMo Gym environment: {why}.", hint="Check the file.")
