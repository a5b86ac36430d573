"""Our cookies are those that Starlette reads and writes."""

from __future__ import annotations

import base64
import json

from itsdangerous import TimestampSigner

from unbroken.adapters.nemo_gym.server import cookies


def test_what_is_signed_here_is_read_there_and_the_other_way_round() -> None:
    payload = {"session_id": "an id", "more": [1, "ü"]}
    for secret in ("StatefulCounterResourcesServer___res", "Ünï___x"):
        theirs = TimestampSigner(secret)
        ours = cookies.sign(secret, payload)
        data = theirs.unsign(ours, max_age=cookies.MAX_AGE)
        assert json.loads(base64.b64decode(data)) == payload
        signed = theirs.sign(base64.b64encode(json.dumps(payload).encode())).decode()
        assert cookies.read(secret, signed) == payload
        assert cookies.read("another", signed) is None
        assert cookies.read(secret, signed, now=2e9 + cookies.MAX_AGE) is None
        assert cookies.read(secret, "null") is None
