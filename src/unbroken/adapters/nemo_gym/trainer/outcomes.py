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
    """Send it again under the next attempt. `spent`: this one counts. `known`: whether it is known that there is no result.

    An agent that has lost a session begins its rollout anew by itself. It is not told to forget it: another attempt may
    have begun meanwhile."""

    error: str
    spent: bool = True
    known: bool = True


@dataclass(frozen=True, slots=True)
class Wait:
    """It was not let in; the same attempt may be sent a little later."""

    error: str


Verdict: TypeAlias = Union[Completed, Failed, Again, Wait]


def judge(status: int, headers: Mapping[str, str], content: bytes) -> Verdict:
    """Return what an answer of `/run` is worth. `headers` are looked up in lower case."""
    text = _text(content)
    refused = headers.get(words.REFUSED, "")
    if refused in PASSING:
        return Wait(f"{refused}: {text}")
    if refused == "stale attempt":
        return Again(f"{refused}: {text}", spent=False)
    if refused:
        return Again(f"{refused}: {text}")
    if status in INFRASTRUCTURE:
        return Again(f"HTTP {status}: {text}")
    if status != 200:
        return Failed(f"HTTP {status}: {text}", content if _object(content) is not None else b"")
    answer = _object(content)
    if answer is None:
        return Failed(f"The answer is no JSON object: {text}")
    reward = answer.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        return Failed(f"The answer has no finite number as its reward, but {reward!r}.", content)
    versions = tuple(v.strip() for v in headers.get(words.POLICY, "").split(",") if v.strip())
    return Completed(float(reward), content, versions)


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except ValueError:  # UnicodeDecodeError is one
        return None
    return found if isinstance(found, dict) else None


def _text(content: bytes) -> str:
    text = content[:400].decode("utf-8", "replace").strip()
    return text or "no text"
