"""The state of a NeMo Gym environment as one layered document: what people and other programs read.

The layers and field names are those of the published protocol (docs/gym-protocol.md); its JSON Schema is
`schema/gym-state-1.json`. Everything that is ours alone stands under an `extensions` key, in a map called `unbroken`.
In a checkpoint the same facts lie in another form, one that grows with what changed; `view` makes this one of it.

Versions are major.minor.patch. A document of another major version is refused; one of an older minor version
is read, and so is a newer minor one: what it has more is kept out of the typed fields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from unbroken.adapters.nemo_gym.control import VERSION
from unbroken.errors import UnsupportedFormat


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


class GymState(msgspec.Struct, kw_only=True):
    """The whole document."""

    version: str = VERSION
    timestamp: str
    """ISO 8601, UTC."""
    environment: Environment
    agents: dict[str, AgentState] = {}
    resources: dict[str, ResourceState] = {}
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    extensions: dict[str, Any] = {}


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
    """
    try:
        version = msgspec.json.decode(document, type=_Versioned).version
        check_version(version)
        return msgspec.json.decode(document, type=GymState)
    except msgspec.DecodeError as error:
        raise UnsupportedFormat(
            f"This is no state of a NeMo Gym environment: {error}.", hint="Check the file."
        ) from error


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    return msgspec.json.schema(GymState)


class _Versioned(msgspec.Struct):
    version: str
