"""What an answer of /run is worth."""

from __future__ import annotations

import json

import pytest

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.trainer.outcomes import Again, Completed, Failed, Wait, judge


def test_a_finite_reward_completes() -> None:
    body = json.dumps({"reward": 0, "response": {}}).encode()
    assert judge(200, {}, body) == Completed(0.0, body, ())
    assert judge(200, {words.POLICY: "v1, v2"}, body) == Completed(0.0, body, ("v1", "v2"))


@pytest.mark.parametrize(
    "body",
    [
        b'{"reward": NaN}',
        b'{"reward": 1e999}',
        b'{"reward": 1' + b"0" * 400 + b"}",
        b'{"reward": 1' + b"0" * 9000 + b"}",
        b'{"reward": 1, "response": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"reward": true}',
        b'{"reward": "1"}',
        b"{}",
        b"[1]",
        b"\xff",
    ],
)
def test_anything_else_as_a_reward_is_none(body: bytes) -> None:
    assert isinstance(judge(200, {}, body), Failed)


@pytest.mark.parametrize("status", [500, 422, 404, 302])
def test_what_the_agent_itself_says_is_not_asked_again(status: int) -> None:
    found = judge(status, {}, b"Traceback: KeyError")
    assert isinstance(found, Failed)
    assert found.error == f"HTTP {status}: Traceback: KeyError"


@pytest.mark.parametrize("status", [503, 502, 504, 429])
def test_an_infrastructure_that_fails_is_asked_again(status: int) -> None:
    assert isinstance(judge(status, {}, b""), Again)


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ("closed", Wait("closed: x")),
        ("busy", Wait("busy: x")),
        ("stale attempt", Again("stale attempt: x", spent=False)),
        ("lost session", Again("lost session: x", anew=True)),
        ("unknown session", Again("unknown session: x", anew=True)),
        ("other", Again("other: x")),
    ],
)
def test_a_refusal_says_what_to_do(refused: str, expected: object) -> None:
    assert judge(503, {words.REFUSED: refused}, b"x") == expected
