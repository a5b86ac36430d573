from __future__ import annotations

import asyncio

import pytest

from benchmarks.connection import Connection


def test_calls_follow_each_other_and_cookies_are_found() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for status in ("200 OK", "200 OK", "500 Internal Server Error"):
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head + await reader.readexactly(2))
            writer.write(
                f"HTTP/1.1 {status}\r\nSet-Cookie: s=1; Path=/\r\ncontent-length: 4\r\n\r\nno ".encode()
            )
            await writer.drain()
            writer.write(b"!")  # an answer may come in pieces
        writer.close()

    async def act() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            connection = await Connection.to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            assert await connection.post("/seed", b"{}") == "s=1"
            assert await connection.post("/add", b"{}", cookie="s=1", call="7") == "s=1"
            with pytest.raises(RuntimeError, match=r"/add was answered HTTP/1\.1 500"):
                await connection.post("/add", b"{}")
            await connection.close()

    asyncio.run(act())
    assert asked[0].startswith(b"POST /seed HTTP/1.1\r\n")
    assert b"cookie" not in asked[0]
    assert b"x-unbroken-call: 7\r\ncookie: s=1\r\n" in asked[1]
