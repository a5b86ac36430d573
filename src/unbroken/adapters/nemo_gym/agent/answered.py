"""An answer as an agent sees it: the part of aiohttp's `ClientResponse` that agents of NeMo Gym use.

An agent gets this for a call that was made and for one that was found in the log, so that it cannot tell the one from the
other. Everything is there from the start; `release` and `close` have nothing to do. Not promised: reading in pieces,
the connection, the history of redirections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import SimpleCookie
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class AnsweredResponse:
    """`cookies` are values of `Set-Cookie` headers; `url` is where the call would have gone."""

    def __init__(
        self,
        *,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        cookies: tuple[str, ...] = (),
        method: str = "POST",
        url: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.method = method
        self.cookies: SimpleCookie = SimpleCookie()
        for cookie in cookies:
            self.cookies.load(cookie)
        self._body = body
        self._content_type = content_type
        self._url = url
        self._set_cookie = cookies
        self._further = dict(headers or {})
        self.content = _Content(body)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method} {self._url} {self.status}>"

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def reason(self) -> str:
        try:
            return HTTPStatus(self.status).phrase
        except ValueError:  # a number that no standard has
            return ""

    @property
    def content_type(self) -> str:
        return self._content_type.partition(";")[0].strip() or "application/octet-stream"

    @property
    def charset(self) -> str | None:
        _, _, parameters = self._content_type.partition(";")
        for parameter in parameters.split(";"):
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "charset":
                return value.strip().strip('"') or None
        return None

    @property
    def headers(self) -> Any:
        from multidict import CIMultiDict

        headers = CIMultiDict(self._further)
        headers["Content-Type"] = self._content_type
        for cookie in self._set_cookie:
            headers.add("Set-Cookie", cookie)
        return headers

    @property
    def url(self) -> Any:
        from yarl import URL

        return URL(self._url)

    @property
    def real_url(self) -> Any:
        return self.url

    @property
    def request_info(self) -> Any:
        from aiohttp import RequestInfo
        from multidict import CIMultiDict, CIMultiDictProxy

        return RequestInfo(self.url, self.method, CIMultiDictProxy(CIMultiDict()), self.url)

    @property
    def history(self) -> tuple[Any, ...]:
        return ()

    @property
    def closed(self) -> bool:
        return True

    async def read(self) -> bytes:
        return self._body

    async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
        return self._body.decode(encoding or self.charset or "utf-8", errors)

    async def json(
        self, *, encoding: str | None = None, loads: Any = json.loads, content_type: Any = None
    ) -> Any:
        """Decode the body, whatever its content type says. An empty one is None, as in aiohttp."""
        text = (await self.text(encoding)).strip()
        return loads(text) if text else None

    def raise_for_status(self) -> None:
        """Raise aiohttp's own `ClientResponseError` where the status is 400 or more."""
        if self.ok:
            return
        from aiohttp import ClientResponseError

        raise ClientResponseError(
            self.request_info, (), status=self.status, message=self.reason, headers=self.headers
        )

    def release(self) -> _Done:
        return _Done()

    def close(self) -> None:
        pass

    async def wait_for_close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class _Content:
    """The stream of a body that is there already."""

    def __init__(self, body: bytes) -> None:
        self._rest = body

    async def read(self, n: int = -1) -> bytes:
        if n < 0:
            n = len(self._rest)
        part, self._rest = self._rest[:n], self._rest[n:]
        return part

    def at_eof(self) -> bool:
        return not self._rest


class _Done:
    """What `release` returns: it may be awaited, and has happened."""

    def __await__(self) -> Any:
        yield from ()
