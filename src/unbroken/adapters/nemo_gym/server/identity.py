"""Whose call this is: the session that a request names, or a new one's id, and how to name it to the application.

A session is named by NeMo Gym's cookie, or over MCP by a token in a header. A request that names none gets an id here, so
that the log knows the session before anything is executed; with a call id it is the same one in every process. A session
that was moved here from another instance comes with that instance's cookie, whose name is its secret.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import Refuses
from unbroken.adapters.nemo_gym.server import cookies
from unbroken.adapters.nemo_gym.serving.asgi import Headers, Scope, header

_NAMESPACE = uuid.UUID("6f4d2d5e-5a0b-5c0e-9d57-0b1f7a3e6c11")
_KEPT = frozenset({"accept", "content-type"})
_KEPT_PREFIXES = ("mcp-", "x-nemo-gym-")
_PAYLOAD = "cookie"
"""The kept header that holds what the cookie carried beside the id, if it did."""
_HANDSHAKES = ("initialize", "ping", "notifications/", "logging/", "completion/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a request says of itself."""

    session: str
    fresh: bool
    """Whether it names no session, and `session` was made here."""
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What its cookie carried."""
    foreign: bool = False
    """Whether the application cannot read its cookie."""
    token: str = ""
    """Its MCP token."""


class Identity:
    """Reads and writes the names of one server's sessions."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._name: str = server.get_session_middleware_key()
        self._kin = f"{type(server).__name__}___"

    def of(self, scope: Scope, *, knows: Callable[[str], bool]) -> Named:
        """Return the session that a request belongs to; `knows` tells the sessions that are here.

        Raises:
            Refuses: it carries a cookie of this server's that was not signed by it, or long ago.
        """
        headers: Headers = scope["headers"]
        token = header(headers, words.MCP_SESSION)
        if token and (session := self._by_token(token)):
            return Named(session=session, fresh=False, token=token)
        given = cookies.found(headers)
        payload: dict[str, Any] = {}
        ahead = False
        if self._name in given:
            read = cookies.read(self._name, given[self._name], skew=cookies.SKEW)
            if read is None:
                raise Refuses(
                    "bad cookie",
                    "The session cookie was not signed by this server, or is older than 14 days. Seed a new session.",
                )
            payload = read
            # The clock was set back since: the application's own reader takes no cookie from the future.
            ahead = cookies.read(self._name, given[self._name]) is None
        own = payload.get(words.SESSION_KEY)
        if isinstance(own, str) and own and knows(own):
            return Named(session=own, fresh=False, payload=payload, foreign=ahead)
        for name, value in given.items():
            if name != self._name and name.startswith(self._kin):
                theirs = cookies.read(name, value, skew=cookies.SKEW) or {}
                moved = theirs.get(words.SESSION_KEY)
                if isinstance(moved, str) and knows(moved):
                    return Named(session=moved, fresh=False, payload=theirs, foreign=True)
        if isinstance(own, str) and own:
            return Named(session=own, fresh=False, payload=payload, foreign=ahead)
        return Named(session=_minted(headers), fresh=True, payload=payload)

    def is_handshake(self, scope: Scope, body: bytes) -> bool:
        """Whether this is a request of the MCP protocol that no session's state depends on."""
        path = str(getattr(self._server, "mcp_url_path", "") or "")
        if not path or scope["path"].rstrip("/") != path.rstrip("/"):
            return False
        if not self._by_token(header(scope["headers"], words.MCP_SESSION)):
            return True  # the application refuses tools that need a session
        try:
            method = json.loads(body)["method"]
        except (ValueError, KeyError, TypeError):
            return False
        return str(method).startswith(_HANDSHAKES) or str(method).endswith("/list")

    def told(self, scope: Scope, named: Named) -> Scope:
        """Return the request such that the application knows the session."""
        if named.token or not (named.fresh or named.foreign):
            return scope
        others = {
            name: value for name, value in cookies.found(scope["headers"]).items() if name != self._name
        }
        headers = [(key, value) for key, value in scope["headers"] if key.lower() != b"cookie"]
        headers.append(self._cookie(named.session, named.payload, others))
        return {**scope, "headers": headers}

    def kept(self, scope: Scope, named: Named) -> dict[str, str]:
        """Return the headers that a later execution of the same call needs. No credentials are among them."""
        kept: dict[str, str] = {}
        for key, value in scope["headers"]:
            name = key.decode("latin-1").lower()
            if name in _KEPT or name.startswith(_KEPT_PREFIXES):
                kept[name] = value.decode("latin-1")
        if set(named.payload) - {words.SESSION_KEY}:
            kept[_PAYLOAD] = json.dumps(dict(named.payload))
        return kept

    def again(
        self, session: str, *, method: str, path: str, query: str, headers: Mapping[str, str], size: int
    ) -> Scope:
        """Return a request like the one that was recorded."""
        wire: Headers = [
            (key.encode("latin-1"), value.encode("latin-1"))
            for key, value in headers.items()
            if key != _PAYLOAD
        ]
        wire.append((b"host", b"127.0.0.1"))
        wire.append((b"content-length", str(size).encode("ascii")))
        if words.MCP_SESSION not in headers:
            wire.append(self._cookie(session, json.loads(headers.get(_PAYLOAD, "{}"))))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "root_path": "",
            "headers": wire,
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }

    def _cookie(
        self, session: str, payload: Mapping[str, Any], others: Mapping[str, str] | None = None
    ) -> tuple[bytes, bytes]:
        value = cookies.sign(self._name, {**payload, words.SESSION_KEY: session})
        pairs = [*(others or {}).items(), (self._name, value)]
        return b"cookie", "; ".join(f"{name}={text}" for name, text in pairs).encode("latin-1")

    def _by_token(self, token: str) -> str:
        serializer = getattr(self._server, "_mcp_token_serializer", None)
        if not token or serializer is None:
            return ""
        from itsdangerous import BadData  # pyright: ignore[reportMissingImports] - comes with NeMo Gym

        try:
            loaded = serializer().loads(token)
        except BadData:
            return ""
        return str(loaded.get("sid", "")) if isinstance(loaded, dict) else str(loaded)


def _minted(headers: Headers) -> str:
    call = header(headers, words.CALL)
    if not call:
        return str(uuid.uuid4())
    return str(
        uuid.uuid5(
            _NAMESPACE, f"{len(header(headers, words.ROLLOUT))}:{header(headers, words.ROLLOUT)}:{call}"
        )
    )
