"""What all pages share: the runs, the work in progress, the rules of access, and how an answer is made."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, TypeAlias
from urllib.parse import parse_qs, quote, urlencode

import jinja2
from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from unbroken.errors import (
    ConfigError,
    CorruptObject,
    ObjectMissing,
    RunBusy,
    StoreUnavailable,
    UnbrokenError,
)
from unbroken.format.records import Commit
from unbroken.inspection.target import Target
from unbroken.repo.repository import Repository
from unbroken.ui.app.access import FORM_KEY, Access
from unbroken.ui.app.catalogue import Catalogue, Run
from unbroken.ui.app.jobs import Jobs
from unbroken.ui.app.looking import Looking
from unbroken.ui.libraries import templates

LONGEST_FORM = 64 << 10


# The three below are answers on their way to the page that gives them, and never leave the server. They stand outside of
# `UnbrokenError`, so that nothing that catches errors of a run on the way takes one for such.


class Missing(Exception):
    """There is no such page."""


class Gone(Exception):
    """A checkpoint that a page is about is not there any more."""

    def __init__(self, run: Run, sequence: int) -> None:
        super().__init__(run.name)
        self.run = run
        self.sequence = sequence


class Refused(Exception):
    """What was asked cannot be done; said in one sentence, with the next step. Nothing was done."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass
class Site:
    """One server's pages over one root."""

    root: str
    access: Access
    allow_write: bool = False
    clock: Callable[[], float] = time.time
    version: str = ""
    jobs: Jobs = field(default_factory=Jobs)
    plotly_version: str = ""
    templates: jinja2.Environment = field(default_factory=templates)

    @cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.root)

    @cached_property
    def looking(self) -> Looking:
        return Looking(self.catalogue, self.clock)

    def close(self) -> None:
        """End all work."""
        self.jobs.close()
        self.looking.close()

    def run(self, address: str) -> Run:
        """Return the run of an address.

        Raises:
            Missing: there is none.
        """
        found = self.catalogue.run(address)
        if found is None:
            raise Missing
        return found

    def opened(self, address: str) -> Opened:
        """Return a run, opened for looking.

        Raises:
            Missing: there is none.
            UnbrokenError: it cannot be read.
        """
        run = self.run(address)
        return Opened(run, self.catalogue.open(run))

    def page(
        self,
        request: Request,
        template: str,
        *,
        title: str,
        about: Mapping[str, object],
        version: Hashable = None,
        status: int = 200,
    ) -> Response:
        """Return a page. `version` is another thing as soon as the page would be; a page that polls gets nothing new till then."""
        tag = "" if version is None else f'"{hashlib.sha256(repr(version).encode()).hexdigest()[:32]}"'
        if tag and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        text = self.templates.get_template(template).render(
            {
                "site": self,
                "title": title,
                "form_key": self.access.form_key,
                "FORM_KEY": FORM_KEY,
                "query": dict(request.query_params),
                "here": request.url.path,
                **about,
            }
        )
        # Names of files and texts of a run may hold what no page can: it is shown as Python writes it.
        page = text.encode("utf-8", "backslashreplace")
        return HTMLResponse(page, status_code=status, headers={"etag": tag} if tag else None)

    def problem(self, request: Request, error: UnbrokenError | OSError) -> Response:
        """Return the page of something that cannot be shown."""
        if isinstance(error, UnbrokenError):
            message = str(error).removesuffix(error.hint).rstrip()
            hint = error.hint
        else:
            message, hint = f"{error.strerror or error}.", ""
        return self.told(request, message, hint, status=status_of(error))

    def told(
        self, request: Request, message: str, hint: str = "", *, title: str = "Not shown", status: int = 200
    ) -> Response:
        """Return a page that says one sentence."""
        about = {"message": message, "hint": hint}
        return self.page(request, "problem.html", title=title, about=about, status=status)


def status_of(error: Exception) -> int:
    """Return what a program is told of an error that keeps a page from being shown.

    >>> status_of(StoreUnavailable("")), status_of(RunBusy("")), status_of(OSError(5, "")), status_of(ConfigError(""))
    (503, 409, 500, 400)
    """
    return next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)


STATUSES: Mapping[type[Exception], int] = {StoreUnavailable: 503, RunBusy: 409, ConfigError: 400}


@dataclass(frozen=True)
class Opened:
    """A run at hand."""

    run: Run
    repository: Repository

    @property
    def address(self) -> str:
        """Where its page is."""
        return f"/runs/{quote(self.run.address)}"

    def commit(self, sequence: int) -> Commit:
        """Return a checkpoint that counts now.

        Raises:
            Gone: it does not any more.
            Missing: no checkpoint has come so far.
        """
        commits = self.repository.commits()
        for commit in commits:
            if commit.sequence == sequence:
                return commit
        if sequence < 1 or not commits or sequence > commits[0].sequence:
            raise Missing
        raise Gone(self.run, sequence)

    def target(self, commit: Commit) -> Target:
        return Target(self.repository, self.run.where, commit)

    def reading(self, commit: Commit) -> Reading:
        """Return a context in which what is missed of a checkpoint that was deleted meanwhile is `Gone`."""
        return Reading(self, commit)


@dataclass(frozen=True)
class Reading:
    """See `Opened.reading`."""

    opened: Opened
    commit: Commit

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (CorruptObject, ObjectMissing)) and self.opened.repository.gone(self.commit):
            raise Gone(self.opened.run, self.commit.sequence) from None


def link(path: str, **query: object) -> str:
    """Return an address with a query."""
    asked = {key: value for key, value in query.items() if value not in (None, "")}
    return path + (f"?{urlencode(asked, errors='surrogatepass')}" if asked else "")


def redirect(path: str) -> Response:
    """Send a browser on, after something was done."""
    return RedirectResponse(path, status_code=303)


async def form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form that was sent.

    Raises:
        Refused: it is too long, or does not carry the key that our forms have.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_FORM:
            raise Refused("This form is too long.")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    site: Site = request.app.state.site
    if not site.access.is_form_key(fields.get(FORM_KEY, [""])[0]):
        raise Refused(
            "This form is of an earlier start of the server, or of another page.",
            "Open the page again, and send it from there.",
        )
    return fields


Fields: TypeAlias = Annotated[dict[str, list[str]], Depends(form)]
"""The fields of a form of ours, as a handler asks for them."""


def one(fields: Mapping[str, list[str]], name: str) -> str:
    """Return a field's only or first value."""
    return fields.get(name, [""])[0]


def whole(text: str) -> int | None:
    """Return a number that an address or a form gives, None where it is none.

    >>> whole("12"), whole("-1"), whole("x")
    (12, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
