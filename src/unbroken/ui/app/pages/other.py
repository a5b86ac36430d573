"""The other checkpoint of a comparison: first its run is chosen from the list of runs, then one of that run's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.format.records import Commit
from unbroken.ui.app.pages.run import CHECKPOINTS, found
from unbroken.ui.app.pages.runs import chosen_of
from unbroken.ui.app.paging import page_number, paged
from unbroken.ui.app.site import Site


def routes(site: Site) -> APIRouter:
    """Return the page on which the other checkpoint is chosen."""
    router = APIRouter()

    @router.get("/runs/{address}/checkpoints/{sequence}/compare")
    def choose(request: Request, address: str, sequence: int) -> Response:
        opened = site.opened(address)
        commit = opened.commit(sequence)
        asked = request.query_params
        title = f"What to compare step {commit.step:,} of {opened.run.name} with"
        about: dict[str, object] = {"opened": opened, "commit": commit, "other": None, "listed": None}
        if not asked.get("run"):
            others = [run for run in site.catalogue.runs() if run.address != address]
            listed = chosen_of(site, others, asked)
            about["listed"] = listed
            return site.page(request, "other.html", title=title, about=about, version=listed.version)
        other = site.opened(asked["run"])
        commits = site.looking.look(other.run, other.repository).commits
        shown = found(commits, asked.get("step", ""))
        near = nearest(shown, commit.step)
        there = 1 if near is None else 1 + shown.index(near) // CHECKPOINTS
        page = paged(shown, page_number(asked.get("page", str(there))), size=CHECKPOINTS, query=asked)
        about |= {"other": other, "page": page, "near": near}
        return site.page(request, "other.html", title=title, about=about)

    return router


def nearest(commits: Sequence[Commit], step: int) -> Commit | None:
    """Return the checkpoint to propose for one of this step, of commits that are listed newest first: of the same step if there
    is one, else of the nearest."""
    return min(commits, key=lambda commit: abs(commit.step - step), default=None)
