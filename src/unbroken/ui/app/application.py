"""The application: the pages of a site behind the rules of access, and what is told where no page can be."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import PurePath
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from unbroken.errors import InternalError, UnbrokenError
from unbroken.ui.app.access import Application, Guarded
from unbroken.ui.app.bugs import HINT, as_told
from unbroken.ui.app.jobs import TooMany
from unbroken.ui.app.pages import checkpoint, difference, other, run, runs, sessions, work
from unbroken.ui.app.site import Gone, Missing, Refused, Site
from unbroken.ui.libraries import STATIC, plotly_js

DAY = 86_400
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
PLOTLY = "plotly.min.js"


def application(site: Site) -> Application:
    """Return the whole application of a site."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        yield
        site.close()

    app = FastAPI(
        title="unbroken",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.site = site
    for part in (runs, run, checkpoint, difference, other, sessions, work):
        app.include_router(part.routes(site))
    app.add_api_route("/static/{name}", _static)
    _tell_errors(app, site)

    def refuse(status: int, message: str, hint: str) -> bytes:
        about = {"message": message, "hint": hint, "title": "Not shown", "status": status}
        return site.templates.get_template("refused.html").render(about).encode()

    return Guarded(app, site.access, refuse)


def _tell_errors(app: FastAPI, site: Site) -> None:
    """Answer with a page that says it in a sentence, whatever a page has raised."""

    def missing(request: Request, _: Exception) -> Response:
        return site.told(
            request, "There is no such page.", "The run may have been renamed or deleted: look at the list of runs.",
            title="No such page", status=404,
        )  # fmt: skip

    def gone(request: Request, error: Exception) -> Response:
        assert isinstance(error, Gone)
        about = {"run": error.run, "address": f"/runs/{quote(error.run.address)}", "sequence": error.sequence}
        return site.page(request, "gone.html", title="Deleted by its run", about=about, status=410)

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return site.told(request, error.message, error.hint, title="Not done", status=400)

    def busy(request: Request, _: Exception) -> Response:
        return site.told(
            request, "Too much is being worked on already.", "Wait for some of it, or stop some of it.",
            title="Not now", status=503,
        )  # fmt: skip

    def ours(request: Request, error: Exception) -> Response:
        if isinstance(error, UnbrokenError):
            error = as_told(error, f"{request.url.path} could not be shown.")
        assert isinstance(error, (UnbrokenError, OSError))
        return site.problem(request, error)

    def other(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        if status == 405:
            return site.told(request, "This page is not asked in this way.", title="Not done", status=405)
        return missing(request, error)

    def bug(request: Request, error: Exception) -> Response:
        # Whoever serves the application raises it once more, and writes down its traceback: not twice.
        told = InternalError(f"A bug in Unbroken: {type(error).__name__}: {error}.", hint=HINT)
        return site.problem(request, told)

    handlers: dict[type[Exception], Callable[[Request, Exception], Response]] = {
        Missing: missing, Gone: gone, Refused: refused, TooMany: busy, UnbrokenError: ours, OSError: ours,
        RequestValidationError: missing, HTTPException: other, Exception: bug,
    }  # fmt: skip
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _static(request: Request, name: str) -> Response:
    """Return one of our own files, by a name that is on the list of what there is."""
    known = _files().get(name)
    if known is None:
        raise Missing
    data, kind, tag = known
    headers = {
        "etag": tag,
        "cache-control": f"private, max-age={DAY}" if "v" in request.query_params else "no-cache",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=kind, headers=headers)


@lru_cache(maxsize=1)
def _files() -> dict[str, tuple[bytes, str, str]]:
    own = [one for one in STATIC.iterdir() if PurePath(one.name).suffix in KINDS]
    found = {one.name: _file(one.name, one.read_bytes()) for one in own}
    found[PLOTLY] = _file(PLOTLY, plotly_js().encode())
    return found


def _file(name: str, data: bytes) -> tuple[bytes, str, str]:
    return data, KINDS[PurePath(name).suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"'
