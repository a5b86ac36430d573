"""Who may ask, and how: the rules that every request to the live pages passes before a page is made.

A page server on one's own machine is asked by more than its owner: by other users of the machine, by whatever page is
open in the owner's browser, and by names that were made to point at it (DNS rebinding). So, in this order: the `Host`
must be one of ours; what is not a plain read must come from our own page; and whoever asks is known, by the token that
the command has printed, or because the connection is one of this very user on this very machine.

Invariant: no answer of a page is given before all three hold. Secrets are compared in constant time.
Not promised: secrecy on the way. A token over plain HTTP is seen by whoever sees the network; a tunnel hides it.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from anyio import to_thread

Scope: TypeAlias = "MutableMapping[str, Any]"
Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
Application: TypeAlias = "Callable[[Scope, Receive, Send], Awaitable[None]]"
Refuse: TypeAlias = "Callable[[int, str, str], bytes]"
"""Makes the page that says what is refused: from its status, one sentence and the next step."""

TOKEN = "token"  # noqa: S105 - the name of the parameter
FORM_KEY = "form_key"
READS = frozenset({"GET", "HEAD"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No script stands in a page; styles do, since the library that draws charts writes them."""
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": a browser then sends no origin with a form, and we ask for it.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server. `hosts` are further names that it may be asked by, `form_key` goes into every form, and `user`
    is the one whose own connections need no token."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    form_key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    hosts: frozenset[str] = frozenset()
    owner: Callable[[tuple[str, int], int], int | None] | None = None
    """Says which user is at the other end of a connection; `owner_of` if it is not given."""
    user: int = field(default_factory=os.geteuid)

    @property
    def is_local(self) -> bool:
        """Whether it is bound to this machine alone."""
        return is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers give cookies of one port to all others, so each has its own."""
        return f"unbroken-{self.port}"

    def is_host(self, header: str) -> bool:
        """Whether a `Host` header names this server.

        A name that somebody else has made to point here is none of ours; a bare address cannot be made so.
        """
        name = host_name(header)
        if not name:
            return False
        if name in self.hosts or name == self.host.lower():
            return True
        if self.is_local:
            return name == "localhost" or is_loopback(name)
        return _address(name) is not None or name == "localhost"

    def is_ours(self, headers: Mapping[str, str]) -> bool:
        """Whether a request that changes something says that it comes from one of our pages."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        if origin is None:
            return True  # no browser of today; the key in the form still has to be right
        return origin.partition("://")[2] == headers.get("host", "")

    def is_form_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.form_key.encode())

    def knows(self, given: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Whether whoever asks shows the token, as a program or as a browser does."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.knows(bearer.strip()):
            return True
        return self.knows(_cookies(headers.get("cookie", "")).get(self.cookie, ""))

    async def is_own(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Whether the connection is one of this very user on this very machine, and nobody else's request comes through it.

        A proxy may be a process of this user, too, and pass on what others ask: then the name that is asked for is not one of
        this machine alone, or a header tells of it.
        Asked in a thread: the kernel writes down all connections of the machine to answer it, and others are served meanwhile.
        Asked at each request: the same port may be another user's with the next connection.
        """
        peer = scope.get("client")
        if not self.is_local or not peer or not is_loopback(str(peer[0])):
            return False
        if not is_loopback(host_name(headers.get("host", ""))) or any(map(_is_of_a_proxy, headers)):
            return False
        asked = self.owner or owner_of
        return await to_thread.run_sync(asked, (str(peer[0]), int(peer[1])), self.port) == self.user


class Guarded:
    """An application behind the rules; adds to every answer the headers that keep a browser from doing more than asked."""

    def __init__(self, app: Application, access: Access, refuse: Refuse) -> None:
        self._app = app
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return

        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = {name.lower() for name, _ in message["headers"]}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in given]
                if b"cache-control" not in given:
                    extra.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        async def without_body(message: Message) -> None:
            await with_headers(
                {**message, "body": b""} if message["type"] == "http.response.body" else message
            )

        answer = await self._answer(scope)
        if answer is None:
            try:
                if scope["method"] == "HEAD":
                    # What a page would be, and nothing of it: no page has to know that.
                    await self._app({**scope, "method": "GET"}, receive, without_body)
                else:
                    await self._app(scope, receive, with_headers)
            except CancelledError:
                # The server ends, and this request was not over in time. Whoever asked is told so; it is no failure of ours.
                if started:
                    raise
                answer = self._refused(503, "The server ends.", "Ask again once it has been started again.")
            else:
                return
        status, headers, body = answer
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await with_headers(start)
        await with_headers({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
        """Return an answer that stands in for a page's; None where the page is to answer."""
        access = self._access
        headers = _headers(scope)
        if not access.is_host(headers.get("host", "")):
            return self._refused(
                421,
                f"This server is not known by the name {headers.get('host', '')[:80]!r}.",
                "Use the address that the command has printed, or start it with --allow-host NAME.",
            )
        if scope["method"] not in READS and not (scope["method"] == "POST" and access.is_ours(headers)):
            return self._refused(
                403, "This request did not come from one of these pages.", "Open the page itself."
            )
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = dict(query).get(TOKEN)
        if given is not None and scope["method"] in READS and access.knows(given):
            # The token leaves the address at once: addresses are kept in histories and shown to whoever looks on.
            rest = urlencode([pair for pair in query if pair[0] != TOKEN])
            place = quote(scope["path"], safe="/~=+,@:") + (f"?{rest}" if rest else "")
            if place.startswith("//"):
                place = "/"
            cookie = f"{access.cookie}={access.token}; Path=/; HttpOnly; SameSite=Strict"
            return 303, [(b"location", place.encode()), (b"set-cookie", cookie.encode())], b""
        if not access.is_shown(headers) and not await access.is_own(scope, headers):
            return self._refused(
                401,
                "These pages need the token of their server.",
                "Open the whole address that `unbroken ui` has printed, with its token.",
            )
        return None

    def _refused(self, status: int, message: str, hint: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        body = self._refuse(status, message, hint)
        kind = (b"content-type", b"text/html; charset=utf-8")
        return status, [kind, (b"content-length", str(len(body)).encode())], body


def is_loopback(name: str) -> bool:
    """Whether a name or an address means this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def _is_of_a_proxy(header: str) -> bool:
    return header in ("forwarded", "via", "x-real-ip") or header.startswith("x-forwarded")


def host_name(header: str) -> str:
    """Return the name in a `Host` header, without its port; nothing of one that is malformed.

    >>> host_name("LocalHost:8080"), host_name("[::1]:8080"), host_name("a b"), host_name("evil.example@127.0.0.1")
    ('localhost', '::1', '', '')
    """
    text = header.strip().lower()
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        return name if closed and _is_port(rest) and _address(name) is not None else ""
    name, colon, port = text.partition(":")
    if not _is_port(colon + port) or not name or not all(char.isalnum() or char in ".-_" for char in name):
        return ""
    return name


def owner_of(peer: tuple[str, int], port: int) -> int | None:
    """Return the user whose process is at the other end of a connection of this machine; None if that cannot be told.

    The kernel lists each connection with the user who opened it. Not promised: an answer elsewhere than on Linux.
    """
    wanted = _address(peer[0])
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                found = _owner_in(lines.read().splitlines()[1:], wanted, peer[1], port)
        except (OSError, ValueError):
            continue
        if found is not None:
            return found
    return None


_ESTABLISHED: Literal["01"] = "01"


def _owner_in(lines: list[str], wanted: object, peer_port: int, port: int) -> int | None:
    for line in lines:
        fields = line.split()
        local, remote, state, user = fields[1], fields[2], fields[3], fields[7]
        if state == _ESTABLISHED and remote.endswith(f":{port:04X}") and local.endswith(f":{peer_port:04X}"):
            address = _of_kernel(local.partition(":")[0])
            if address == wanted:
                return int(user)
    return None


def _of_kernel(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address that the kernel wrote: in words of four bytes, each in the order of the machine."""
    raw = bytes.fromhex(text)
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return _unmapped(ipaddress.ip_address(swapped))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return _unmapped(ipaddress.ip_address(name))
    except ValueError:
        return None


def _unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and text[1:].isascii() and text[1:].isdigit())


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name. Of one that is given twice both are kept, so that neither passes for the other."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _cookies(header: str) -> dict[str, str]:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return {name: value for name, found, value in pairs if found}
