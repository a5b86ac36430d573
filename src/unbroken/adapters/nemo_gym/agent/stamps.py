"""Which rollout a request for `/run` is about.

A trainer stamps its rows: the id is then good for all time. The rows of NeMo Gym's own command have the number of a task and of a
sample, the same in each collection; their id is made from these, from what the row says, and from the agent that is asked:
another agent's rollout of the same row is another one. Rows without any number
may well be alike and still ask for a rollout each: whoever numbers them has to look at those that run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Refuses
from unbroken.adapters.nemo_gym.serving.asgi import Headers, header

NOT_SAID = frozenset({words.ATTEMPT_KEY, words.POLICY_KEY})
"""Keys of a row that differ from one try to the next."""

_MOST_ATTEMPTS = 1 << 53
"""What JSON can say exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    rollout: str
    attempt: int
    stamped: bool
    """Whether somebody gave the id."""
    numbered: bool
    """Whether no other row has this id."""
    policy_version: str
    row: str
    """A digest of what the row says, the same in each attempt."""


def stamp_of(headers: Headers, body: bytes, *, agent: str) -> Stamp:
    """Read which rollout is asked for.

    Raises:
        Refuses: the attempt is no number, an id is no text, or the row is nested too deeply to be read.
    """
    try:
        row = _row(body)
        said, short = _digest(row, body, size=16), _digest(row, body)
    except RecursionError:
        raise Refuses(
            "format", "The row is nested too deeply to be read. Send one that is flatter."
        ) from None
    given = header(headers, words.ROLLOUT)
    call = header(headers, words.CALL)
    if given and call:  # another agent asks: each of its calls is a rollout of its own here
        given = call
    given = given or str(row.get(words.ROLLOUT_KEY) or "")
    numbered = words.TASK_KEY in row and words.SAMPLE_KEY in row
    made = f"row-{short}@{agent}"
    if numbered:
        made = f"{row[words.TASK_KEY]}-{row[words.SAMPLE_KEY]}-{short}@{agent}"
    policy = row.get(words.POLICY_KEY)
    return Stamp(
        rollout=_text(words.ROLLOUT_KEY, given or made),
        attempt=_attempt(header(headers, words.ATTEMPT) or row.get(words.ATTEMPT_KEY)),
        stamped=bool(given),
        numbered=bool(given) or numbered,
        policy_version="" if policy is None else _text(words.POLICY_KEY, str(policy)),
        row=said,
    )


def _row(body: bytes) -> dict[str, Any]:
    try:
        row: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        # Half a surrogate pair, NaN: applications take what Python's own reader takes, and the id of such a row counts, too.
        try:
            row = json.loads(body)
        except ValueError:  # the agent will say what is wrong with it
            return {}
    return row if isinstance(row, dict) else {}


def _text(key: str, given: str) -> str:
    """Return what names a rollout in headers and logs, where half a surrogate pair cannot stand."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise Refuses("format", f"{key} of the row is {given!a}, which is no Unicode text.") from None
    return given


def _attempt(given: Any) -> int:
    if given is None or given == "":
        return 0
    try:
        attempt = int(given)
    except (TypeError, ValueError, OverflowError):
        attempt = -1
    if not 0 <= attempt < _MOST_ATTEMPTS or isinstance(given, (bool, float)):
        raise Refuses(
            "format",
            f"The attempt {str(given)[:60]!a} is no whole number from 0 on. Look at {words.ATTEMPT_KEY} of the row.",
        )
    return attempt


def _digest(row: dict[str, Any], body: bytes, *, size: int = 6) -> str:
    said = {key: value for key, value in row.items() if key not in NOT_SAID}
    text = json.dumps(said, sort_keys=True, separators=(",", ":")).encode() if row else body
    return hashlib.blake2b(text, digest_size=size).hexdigest()
