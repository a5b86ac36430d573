"""What an answer of `/run` is worth: a pure function from an HTTP answer to what becomes of the rollout.

An infrastructure that failed is no result: such a rollout is sent again, and has no reward until one was computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import LOST

PASSING = frozenset({"closed", "busy"})
"""Refusals that mean: not yet."""
INFRASTRUCTURE = frozenset({408, 425, 429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Completed:
    reward: float
    response: bytes
    policy_versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The agent has answered, and there is no reward. Sending it again would give the same."""

    error: str
    response: bytes = b""


@dataclass(frozen=True, slots=True)
class Again:
    """Send it again under the next attempt. `spent`: this one counts. `anew`: a session of it was refused, so it begins anew.

    An agent that has lost a session begins its rollout anew by itself. It is not told to forget it: another attempt may
    have begun meanwhile."""

    error: str
    spent: bool = True
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection ended in the middle, and nobody knows what has become of it. Send it under the next attempt: an agent
    that is started again goes on where it was, so this one does not count."""

    error: str


@dataclass(frozen=True, slots=True)
class Wait:
    """It was not let in; the same attempt may be sent a little later."""

    error: str


Verdict: TypeAlias = Union[Completed, Failed, Again, Lost, Wait]


def judge(status: int, headers: Mapping[str, str], content: bytes) -> Verdict:
    """Return what an answer of `/run` is worth. `headers` are looked up in lower case."""
    text = _text(content)
    refused = headers.get(words.REFUSED, "")
    if refused in PASSING:
        return Wait(f"{refused}: {text}")
    if refused == "stale attempt":
        return Again(f"{refused}: {text}", spent=False)
    if refused:
        return Again(f"{refused}: {text}", anew=refused in LOST)
    if status in INFRASTRUCTURE:
        return Again(f"HTTP {status}: {text}")
    if status != 200:
        return Failed(f"HTTP {status}: {text}", content if _object(content) is not None else b"")
    answer = _object(content)
    if answer is None:
        return Failed(f"The answer is no JSON object: {text}")
    reward = _finite(answer.get("reward"))
    if reward is None:
        return Failed(
            f"The answer has no finite number as its reward, but {_shown(answer.get('reward'))}.", content
        )
    versions = tuple(v.strip() for v in headers.get(words.POLICY, "").split(",") if v.strip())
    return Completed(reward, content, versions)


def _finite(reward: object) -> float | None:
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        return None
    try:
        found = float(reward)
    except OverflowError:  # JSON's integers have no end
        return None
    return found if math.isfinite(found) else None


def _shown(value: object) -> str:
    """Return a few words on a value of any size."""
    return f"a {type(value).__name__}" if isinstance(value, (list, dict)) else repr(value)[:100]


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError; nested too deeply
        return None
    return found if isinstance(found, dict) else None


def _text(content: bytes) -> str:
    text = content[:400].decode("utf-8", "replace").strip()
    return text or "no text"
