"""How two checkpoints of a run differ, leaf by leaf. Both are read whole, so it is a job."""

from __future__ import annotations

import re
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.errors import ConfigError
from unbroken.format.records import Commit
from unbroken.inspection.difference import Difference, difference
from unbroken.inspection.target import Target, open_run
from unbroken.inspection.watched import Watched
from unbroken.repo.repository import Repository
from unbroken.report.comparison import classes_told, off_by, plain, promises_told
from unbroken.state.diff import LeafDifference
from unbroken.ui.app.catalogue import Run
from unbroken.ui.app.jobs import Job
from unbroken.ui.app.paging import page_number, paged
from unbroken.ui.app.site import Fields, Refused, Site, link, one, redirect, whole

DIFFERENCE = "difference"
LEAVES = 100
"""On a page."""
PATIENCE = 1.0
ORDERS = ("place", "distance")


def routes(site: Site) -> APIRouter:
    """Return the form that begins a comparison, and its page."""
    router = APIRouter()

    @router.post("/runs/{address}/difference")
    def compare(address: str, fields: Fields) -> Response:
        opened = site.opened(address)
        chosen = [number for text in fields.get("checkpoint", []) if (number := whole(text)) is not None]
        if len(set(chosen)) != 2:
            raise Refused(
                f"Two checkpoints can be compared, and {len(set(chosen)) or 'none'} were chosen.",
                "Go back, and tick two boxes in the table of checkpoints.",
            )
        older, newer = sorted(set(chosen))
        clocks = one(fields, "wall_clock") == "yes"
        for sequence in (older, newer):
            opened.commit(sequence)
        title = f"Compare two checkpoints of {opened.run.name}"
        work = partial(_compared, opened.run, older, newer, clocks)
        job = site.jobs.start(DIFFERENCE, opened.run.where, title, work, key=(older, newer, clocks))
        job.wait(PATIENCE)
        query = {"a": older, "b": newer, "wall_clock": "yes" if clocks else ""}
        return redirect(link(f"{opened.address}/difference", **query))

    @router.get("/runs/{address}/difference")
    def shown(request: Request, address: str) -> Response:
        opened = site.opened(address)
        asked = request.query_params
        a, b = whole(asked.get("a", "")), whole(asked.get("b", ""))
        clocks = asked.get("wall_clock", "") == "yes"
        if a is None or b is None:
            raise Refused(
                "A comparison needs two checkpoints.", "Tick two boxes in the table of checkpoints."
            )
        latest = site.jobs.latest(DIFFERENCE, opened.run.where, (a, b, clocks))
        job = None if latest is None else latest.seen()
        about: dict[str, object] = {
            "opened": opened,
            "a": a,
            "b": b,
            "clocks": clocks,
            "job": job,
            "difference": None,
        }
        if job is not None and isinstance(job.result, Difference):
            about |= _told(
                job.result,
                component=asked.get("component", ""),
                order=asked.get("order", "place"),
                request=request,
            )
        version = (
            None
            if job is None
            else (job.id, job.state, job.ended, job.done, job.words, job.read >> 20, job.is_stopping),
            dict(asked),
        )
        return site.page(
            request, "difference.html", title=f"Difference in {opened.run.name}", about=about, version=version
        )

    return router


def _told(found: Difference, *, component: str, order: str, request: Request) -> dict[str, object]:
    leaves = [leaf for leaf in found.leaves if component in ("", leaf.component)]
    if order == "distance":
        leaves.sort(key=_distance)
    asked = request.query_params
    return {
        "difference": found,
        "order": order if order in ORDERS else ORDERS[0],
        "orders": ORDERS,
        "component": component,
        "promises": promises_told(found.components),
        "classes": classes_told(found.components),
        "page": paged(leaves, page_number(asked.get("page", "1")), size=LEAVES, query=asked),
        "off_by": off_by,
        "told": told,
        "far": far,
    }


def told(text: str) -> str:
    """Return one side of a difference for people.

    >>> told("<f4[256]"), told("|u1[3, 4]"), told("0.5")
    ('float32[256]', 'uint8[3, 4]', '0.5')
    """
    found = _ARRAY.match(text)
    if found is None:
        return plain(text)
    return f"{_KINDS[found[1]]}{8 * int(found[2])}{text[found.end() :]}"


def far(leaf: LeafDifference) -> str:
    """Return how far apart two numbers are; nothing where that means nothing, as of the words of a generator.

    >>> far(LeafDifference(place="a", component="c", before="1.5", after="2.0", distance=0.5))
    '0.5'
    >>> far(LeafDifference(place="a", component="c", before="4086520183", after="17", distance=4086520166.0))
    ''
    """
    words = _WORDS.match(leaf.before) or _WORDS.match(leaf.after)
    return "" if leaf.distance is None or words else f"{leaf.distance:.3g}"


_ARRAY = re.compile(r"[<>|=]([iufc])([1-9]\d*)(?=\[)")
_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_WORDS = re.compile(r"-?\d{10,}$|[<>=]u[48]\[")
"""Whole numbers of 32 bits and more, and arrays of them without a sign: states of generators, hashes, masks."""


def _distance(leaf: LeafDifference) -> float:
    return float("-inf") if leaf.distance is None else -leaf.distance


def _compared(run: Run, a: int, b: int, wall_clock: bool, job: Job) -> Difference:  # noqa: FBT001
    plain_store = open_run(run.where)
    repository = Repository.over(Watched(plain_store.store, job.look), plain_store.job)
    commits: dict[int, Commit] = {commit.sequence: commit for commit in repository.commits()}
    for sequence in (a, b):
        if sequence not in commits:
            raise ConfigError(
                f"Checkpoint {sequence} was deleted by its run before it was read.",
                hint="Choose among those that there are now.",
            )
    job.told(0, 0, "reading both checkpoints")
    left, right = (Target(repository, run.where, commits[sequence]) for sequence in (a, b))
    return difference(left, right, wall_clock=wall_clock)
