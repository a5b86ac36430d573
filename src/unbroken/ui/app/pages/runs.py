"""The runs under the root."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.inspection.overview import State
from unbroken.ui.app.catalogue import Run
from unbroken.ui.app.looking import Glance
from unbroken.ui.app.paging import Page, page_number, paged
from unbroken.ui.app.site import Site

RUNS = 50
"""On a page."""
SECONDS = 0.4
"""So long a page waits for runs that are still being read."""
FILTERED_SECONDS = 2.0
BELIEVED = 15.0
"""Seconds for which what was seen of a run says whether it is chosen, and where it stands. What is shown of it is asked anew."""
STATES: tuple[State, ...] = ("running", "stale", "crashed", "stopped", "finished", "empty")
ORDERS: dict[str, Callable[[Glance], object]] = {
    "name": lambda glance: glance.run.name,
    "last save": lambda glance: -_last_save(glance),
    "step": lambda glance: -_newest_step(glance),
    "size": lambda glance: -((glance.brief.on_disk or 0) if glance.brief else 0),
}


def routes(site: Site) -> APIRouter:
    """Return the page of all runs."""
    router = APIRouter()

    @router.get("/")
    def runs(request: Request) -> Response:
        found = site.catalogue.runs()
        listed = chosen_of(site, found, request.query_params)
        return site.page(request, "runs.html", title="Runs", about={"listed": listed}, version=listed.version)

    return router


@dataclass(frozen=True, slots=True)
class Listed:
    """What a list shows of the runs that were found, and how it was narrowed."""

    page: Page[Glance]
    all: int
    words: str
    state: str
    order: str
    states: tuple[str, ...] = STATES
    orders: tuple[str, ...] = tuple(ORDERS)

    @property
    def pending(self) -> bool:
        """Whether a run of it is still being read."""
        return any(one.is_pending for one in self.page.items)

    @property
    def version(self) -> Hashable:
        """Return what is another thing as soon as the list is."""
        return (
            self.all,
            tuple((one.run.address, one.standing, one.problem, one.brief and one.brief.on_disk, _last_save(one), one.is_pending) for one in self.page.items),
            self.page.number, self.page.total,
        )  # fmt: skip


def chosen_of(site: Site, found: list[Run], asked: Mapping[str, str]) -> Listed:
    """Return the list of the runs that were found, as an address asks for it."""
    words, state, order = asked.get("q", "").strip(), asked.get("state", ""), asked.get("order", "name")
    named = [run for run in found if words.lower() in run.name.lower()]
    number = page_number(asked.get("page", "1"))
    if state in STATES or order != "name":
        every = site.looking.glances(named, seconds=FILTERED_SECONDS, believed=BELIEVED)
        kept = [one for one in every if state not in STATES or _state(one) in (state, "")]
        kept.sort(key=ORDERS.get(order, ORDERS["name"]))  # type: ignore[arg-type]
        some = paged([one.run for one in kept], number, size=RUNS, query=asked)
    else:
        some = paged(named, number, size=RUNS, query=asked)
    glances = site.looking.glances(list(some.items), seconds=SECONDS)
    page = some.mapped(dict(zip(some.items, glances, strict=True)).__getitem__)
    return Listed(page, len(found), words, state, order)


def _state(glance: Glance) -> str:
    return glance.standing.state if glance.standing is not None else ""


def _last_save(glance: Glance) -> float:
    return (glance.brief.last_save or 0.0) if glance.brief is not None else 0.0


def _newest_step(glance: Glance) -> int:
    step = glance.brief.newest_step if glance.brief is not None else None
    return -1 if step is None else step
