"""The least that a client has to do to call a server over HTTP/1.1 again and again.

A client library takes about as long for a call as a server does, and would hide what is measured.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

_END = b"\r\n\r\n"


class Connection:
    """One connection that stays open. One call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, url: str) -> Connection:
        """Connect to the server at `url`."""
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def post(self, path: str, body: bytes, *, cookie: str = "", call: str = "") -> str:
        """Call the server, and return the cookie that its answer sets. `call` names the call, as agents do.

        Raises:
            RuntimeError: the answer is not 200.
        """
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        head += f"x-unbroken-call: {call}\r\n" if call else ""
        head += f"cookie: {cookie}\r\n" if cookie else ""
        self._writer.write(f"{head}\r\n".encode() + body)
        status, *lines = (await self._reader.readuntil(_END)).decode("latin-1").splitlines()
        given: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            given[name.lower()] = value
        answer = await self._reader.readexactly(int(given["content-length"]))
        if " 200 " not in status:
            raise RuntimeError(f"{path} was answered {status}: {answer[:300]!r}")
        return given.get("set-cookie", "").partition(";")[0]

    async def close(self) -> None:
        """Close it."""
        self._writer.close()
        await self._writer.wait_closed()
