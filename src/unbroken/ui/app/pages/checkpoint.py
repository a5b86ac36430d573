"""One checkpoint, and the leaves of one component of it. No array is read for either."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.errors import ConfigError, CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format.meta import ComponentCost
from unbroken.format.records import Commit
from unbroken.inspection.checkpoint import describe
from unbroken.inspection.listing import listed
from unbroken.inspection.makeup import makeup
from unbroken.repo.usage import CheckpointCost
from unbroken.report.tree import Leaf, leaves
from unbroken.state.parts import split_name
from unbroken.state.snapshot import Component
from unbroken.ui.app.kept import Kept
from unbroken.ui.app.pages.run import cost_in
from unbroken.ui.app.pages.work import MEASURE
from unbroken.ui.app.paging import page_number, paged
from unbroken.ui.app.site import Missing, Opened, Site, link
from unbroken.ui.charts.treemap import treemap

GYM = "gym"
"""The component that holds NeMo Gym, and has pages of its own."""
LEAVES = 100
"""On a page."""
TREES = 4
"""So many components' leaves are kept; one may have some hundred thousand."""
NOTES = 50
UNREADABLE = (CorruptObject, ObjectMissing, UnsupportedFormat)


def routes(site: Site) -> APIRouter:
    """Return the page of a checkpoint, and that of a component."""
    router = APIRouter()
    trees: Kept[Sequence[Leaf]] = Kept(TREES)

    @router.get("/runs/{address}/checkpoints/{sequence}")
    def checkpoint(request: Request, address: str, sequence: int) -> Response:
        opened = site.opened(address)
        look = site.looking.look(opened.run, opened.repository)
        commit = opened.commit(sequence)
        (known,) = listed(opened.repository, [commit], among=look.commits)
        about: dict[str, object] = {
            "opened": opened,
            "commit": commit,
            "known": known,
            "older": beside(look.commits, commit, 1),
            "newer": beside(look.commits, commit, -1),
            "point": next((p for p in look.story.points if p.sequence == sequence), None),
            "described": None,
            "problem": "",
            "gym": "",
        }
        try:
            with opened.reading(commit):
                described = describe(opened.target(commit), commit)
                shares = makeup(opened.repository, commit, measured(site, opened, commit))
        except UNREADABLE as error:
            about["problem"] = str(error)
        else:
            meta = described.meta
            names = [row.component for row in described.components]
            about |= {
                "described": described,
                "meta": meta,
                "costs": [
                    (row, meta.cost.get(row.component, ComponentCost())) for row in described.components
                ],
                "shares": {share.component: share for share in shares},
                "chart": treemap(shares, title="What it is made of"),
                "notes": meta.notes[:NOTES],
                "more_notes": max(0, len(meta.notes) - NOTES),
                "gym": next((name for name in names if split_name(name)[0] == GYM), ""),
            }
        title = f"Step {commit.step:,} of {opened.run.name}"
        return site.page(request, "checkpoint.html", title=title, about=about)

    @router.get("/runs/{address}/checkpoints/{sequence}/makeup")
    def makeup_data(request: Request, address: str, sequence: int) -> Response:
        opened = site.opened(address)
        commit = opened.commit(sequence)
        with opened.reading(commit):
            shares = makeup(opened.repository, commit, measured(site, opened, commit))
        chart = treemap(shares, title=f"What step {commit.step:,} is made of")
        page = paged(chart.table.rows, 1, size=max(1, len(chart.table.rows)))
        about = {"opened": opened, "chart": chart, "page": page}
        return site.page(request, "data.html", title=chart.title, about=about)

    @router.get("/runs/{address}/checkpoints/{sequence}/component")
    def component(request: Request, address: str, sequence: int) -> Response:
        opened = site.opened(address)
        commit = opened.commit(sequence)
        asked = request.query_params
        name, words = asked.get("name", ""), asked.get("q", "").strip()

        def read() -> Sequence[Leaf]:
            document = opened.repository.document(commit, name)
            return tuple(leaves(Component(name, document.roots)))

        try:
            with opened.reading(commit):
                every = trees.get((opened.run.where, commit.sequence, commit.write_id, name), read)
        except ConfigError:
            raise Missing from None
        found = [leaf for leaf in every if words.lower() in leaf.place.lower()] if words else every
        about = {
            "opened": opened,
            "commit": commit,
            "name": name,
            "words": words,
            "all": len(every),
            "page": paged(found, page_number(asked.get("page", "1")), size=LEAVES, query=asked),
            "sessions": link(f"{opened.address}/checkpoints/{sequence}/sessions")
            if split_name(name)[0] == GYM
            else "",
        }
        return site.page(request, "component.html", title=f"{name} at step {commit.step:,}", about=about)

    return router


def beside(commits: Sequence[Commit], commit: Commit, by: int) -> Commit | None:
    """Return the checkpoint that was written before (1) or after (-1) another."""
    sequences = [one.sequence for one in commits]
    if commit.sequence not in sequences:
        return None
    at = sequences.index(commit.sequence) + by
    return commits[at] if 0 <= at < len(commits) else None


def measured(site: Site, opened: Opened, commit: Commit) -> CheckpointCost | None:
    """Return what a job has measured of a checkpoint."""
    cost = cost_in(site.jobs.latest(MEASURE, opened.run.where))
    for found in () if cost is None else cost.checkpoints:
        if found.commit.sequence == commit.sequence and not found.problem:
            return found
    return None
