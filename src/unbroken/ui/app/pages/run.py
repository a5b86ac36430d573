"""One run: how it stands, its curves, its interruptions, its checkpoints, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.format.records import Commit
from unbroken.inspection.listing import listed
from unbroken.inspection.overview import Story, budget_of, checkpoint_rows, interruptions
from unbroken.repo.usage import RunCost
from unbroken.ui.app.jobs import Job
from unbroken.ui.app.kept import Kept
from unbroken.ui.app.looking import Look
from unbroken.ui.app.pages.work import MEASURE
from unbroken.ui.app.paging import page_number, paged
from unbroken.ui.app.site import Missing, Opened, Site, link, whole
from unbroken.ui.charts.chart import Chart
from unbroken.ui.charts.costs import save_cost, sizes
from unbroken.ui.charts.curves import CURVES, curve

CHECKPOINTS = 50
RESTARTS = 20
ROWS = 100
"""On a page."""
JOBS = 5
CHARTS = 64
"""So many charts are kept."""
BUDGETS = 64
COSTS: Mapping[str, Callable[[Story, float | None], Chart]] = {
    "cost": save_cost,
    "sizes": lambda story, _: sizes(story),
}


def routes(site: Site) -> APIRouter:
    """Return the page of a run."""
    router = APIRouter()
    charts: Kept[Chart] = Kept(CHARTS)
    budgets: Kept[float | None] = Kept(BUDGETS)

    def budget_in(opened: Opened, look: Look) -> float | None:
        return budgets.get(opened.run.where, lambda: budget_of(opened.repository), version=look.moment)

    def chart_of(opened: Opened, look: Look, name: str, metric: str | None) -> Chart:
        """Return a chart of a run; of a curve one metric, the usual one where none of this name is known."""
        story = look.story
        crashed = site.looking.standing(opened.repository, look).state == "crashed"
        chosen = metric if metric in story.metrics else None

        def draw() -> Chart:
            if name in CURVES:
                return curve(story, name, metric=chosen, most=1, crashed=crashed)
            return COSTS[name](story, budget_in(opened, look))

        return charts.get((opened.run.where, name, chosen), draw, version=(look.moment, crashed))

    @router.get("/runs/{address}")
    def run(request: Request, address: str) -> Response:
        opened = site.opened(address)
        look = site.looking.look(opened.run, opened.repository)
        standing = site.looking.standing(opened.repository, look)
        asked = request.query_params
        commits = found(look.commits, asked.get("step", ""))
        page = paged(commits, page_number(asked.get("page", "1")), size=CHECKPOINTS, query=asked)
        restarts = paged(
            look.story.restarts[::-1],
            page_number(asked.get("restarts", "1")),
            size=RESTARTS,
            parameter="restarts",
            query=asked,
        )
        latest = site.jobs.latest(MEASURE, opened.run.where)
        measured = None if latest is None else latest.seen()
        jobs = [job.seen() for job in site.jobs.of(opened.run.where)[:JOBS]]
        rows = checkpoint_rows(
            listed(opened.repository, page.items, among=look.commits), look.story, cost_in(measured)
        )
        version: Hashable = (
            look.moment, standing, dict(asked), page.number, restarts.number, measured is not None and measured.state,
            [(job.id, job.state, job.done, job.is_stopping) for job in jobs], [(row.sequence, row.problem) for row in rows],
        )  # fmt: skip
        about = {
            "opened": opened,
            "look": look,
            "standing": standing,
            "newest": newest(look),
            "budget": budget_in(opened, look),
            "curves": [chart_of(opened, look, name, asked.get(name)) for name in CURVES],
            "costs": [chart_of(opened, look, name, None) for name in COSTS],
            "table_of": partial(table_of, opened, asked),
            "page": page,
            "rows": rows,
            "points": {point.sequence: point for point in look.story.points if point.sequence},
            "restarts": restarts,
            "cut": interruptions(look.story, standing.state),
            "measured": measured,
            "cost": cost_in(measured),
            "jobs": jobs,
        }
        return site.page(request, "run.html", title=opened.run.name, about=about, version=version)

    @router.get("/runs/{address}/data/{name}")
    def data(request: Request, address: str, name: str) -> Response:
        opened = site.opened(address)
        look = site.looking.look(opened.run, opened.repository)
        if name not in CURVES and name not in COSTS:
            raise Missing
        asked = request.query_params
        chart = chart_of(opened, look, name, asked.get("metric"))
        page = paged(chart.table.rows[::-1], page_number(asked.get("page", "1")), size=ROWS, query=asked)
        about = {"opened": opened, "chart": chart, "page": page}
        return site.page(request, "data.html", title=f"{chart.title} of {opened.run.name}", about=about)

    return router


def table_of(opened: Opened, asked: Mapping[str, str], chart: Chart) -> str:
    """Return where a chart of a run's page stands as a table."""
    return link(
        f"{opened.address}/data/{chart.name}", metric=asked.get(chart.name) if chart.choices else None
    )


def found(commits: Sequence[Commit], text: str) -> Sequence[Commit]:
    """Return the commits from a step on downwards, all of them where none is named."""
    step = whole(text.strip().replace(",", ""))
    return commits if step is None else [commit for commit in commits if commit.step <= step]


def newest(look: Look) -> Commit | None:
    return look.commits[0] if look.commits else None


def cost_in(job: Job | None) -> RunCost | None:
    """Return what a job has measured, None where it has not yet."""
    return job.result if job is not None and isinstance(job.result, RunCost) else None
