"""A site's pages asked without a network: the whole application, with its rules of access, in this process."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import anyio.from_thread
import httpx
from httpx import ASGITransport, AsyncClient

from unbroken.ui.app.access import FORM_KEY, Access
from unbroken.ui.app.application import application
from unbroken.ui.app.site import Site

PORT = 8484
LOCAL = ("127.0.0.1", 50_000)
ELSEWHERE = ("192.0.2.7", 50_000)


class Pages:
    """Asks for pages as a browser does that follows no redirects and runs no script."""

    def __init__(self, site: Site, *, peer: tuple[str, int] = LOCAL, host: str = f"127.0.0.1:{PORT}") -> None:
        self.site = site
        self._transport = ASGITransport(app=application(site), client=peer, raise_app_exceptions=False)
        self._host = host

    def client(self) -> AsyncClient:
        """Return who asks, for use in a loop."""
        return AsyncClient(transport=self._transport, base_url=f"http://{self._host}")

    def ask(
        self,
        method: str,
        path: str,
        *,
        fields: list[tuple[str, str]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        async def once() -> httpx.Response:
            async with self.client() as client:
                body = None if fields is None else urlencode(fields).encode()
                return await client.request(method, path, content=body, headers=dict(headers or {}))

        with anyio.from_thread.start_blocking_portal() as portal:
            return portal.call(once)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.ask("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})

    def post(self, path: str, *fields: tuple[str, str]) -> httpx.Response:
        """Send a form of ours."""
        return self.ask("POST", path, fields=[(FORM_KEY, self.site.access.form_key), *fields])

    def followed(self, answer: httpx.Response) -> httpx.Response:
        """Return the page that an answer sends on to."""
        assert answer.status_code == 303, words(answer)
        return self.get(answer.headers["location"])

    def done(self, answer: httpx.Response) -> httpx.Response:
        """Return the page of the job that a form has begun, once it is over."""
        assert answer.status_code == 303, words(answer)
        place = answer.headers["location"]
        job = self.site.jobs.get(place.rpartition("/")[2])
        assert job is not None
        assert job.wait(60)
        return self.get(place)


@contextmanager
def site_over(
    root: Path | str, *, allow_write: bool = False, access: Access | None = None
) -> Generator[Site, None, None]:
    """A site whose caller is this user on this machine, unless its own rules say something else."""
    rules = access or Access("127.0.0.1", PORT, owner=lambda peer, port: os.geteuid())
    site = Site(str(root), rules, allow_write=allow_write)
    try:
        yield site
    finally:
        site.close()


def words(answer: httpx.Response) -> str:
    """Return what a person reads of a page, with single spaces."""
    text = re.sub(r"<script[^>]*>.*?</script>", " ", answer.text, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def links(answer: httpx.Response) -> list[str]:
    return [unescape(link) for link in re.findall(r'href="([^"]+)"', answer.text)]


def files(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything below a folder: its mode, when it was changed last, and what a file holds."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        found[str(path)] = about.st_mode, about.st_mtime_ns, path.read_bytes() if path.is_file() else b""
    return found
