"""How two checkpoints differ, leaf by leaf: two of a run, or one each of two runs. Both are read whole, so it is a job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.errors import ConfigError
from unbroken.inspection.difference import Difference, difference
from unbroken.inspection.target import Target, open_run
from unbroken.inspection.watched import Watched
from unbroken.repo.repository import Repository
from unbroken.report.comparison import classes_told, off_by, plain, promises_told
from unbroken.state.diff import LeafDifference
from unbroken.ui.app.jobs import Job
from unbroken.ui.app.paging import page_number, paged
from unbroken.ui.app.site import Fields, Opened, Refused, Site, link, one, redirect, whole

DIFFERENCE = "difference"
LEAVES = 100
"""On a page."""
PATIENCE = 1.0
ORDERS = ("place", "distance")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two checkpoints to compare: `a` of one run, and `b` of the same or of another. `clocks`: times of the wall clock, too."""

    left: Opened
    a: int
    right: Opened
    b: int
    clocks: bool

    @property
    def other(self) -> str:
        """The address of the other run; empty if there is none."""
        return "" if self.left.run == self.right.run else self.right.run.address

    @property
    def key(self) -> tuple[object, ...]:
        """What tells one comparison with a run from another."""
        return (self.a, self.right.run.where, self.b, self.clocks)

    @property
    def page(self) -> str:
        """Where what comes of it is shown, now and to whomever the address is sent."""
        clocks = "yes" if self.clocks else ""
        return link(
            f"{self.left.address}/difference", a=self.a, b=self.b, other=self.other, wall_clock=clocks
        )

    @property
    def names(self) -> str:
        """What the runs are called."""
        return f"{self.left.run.name} and {self.right.run.name}" if self.other else self.left.run.name

    @property
    def title(self) -> str:
        return f"Compare two checkpoints of {self.names}"


def routes(site: Site) -> APIRouter:
    """Return the form that begins a comparison, and its page."""
    router = APIRouter()

    @router.post("/runs/{address}/difference")
    def compare(address: str, fields: Fields) -> Response:
        opened = site.opened(address)
        chosen = {number for text in fields.get("checkpoint", []) if (number := whole(text)) is not None}
        clocks = one(fields, "wall_clock") == "yes"
        if one(fields, "elsewhere"):
            if len(chosen) != 1:
                raise Refused(
                    f"One checkpoint of a run is compared with one of another, and {_were_chosen(chosen)}.",
                    "Go back, and tick one box in the table of checkpoints.",
                )
            return redirect(f"{opened.address}/checkpoints/{opened.commit(chosen.pop()).sequence}/compare")
        pair = _pair(site, opened, chosen, one(fields, "other"), one(fields, "with"), clocks)
        pair.left.commit(pair.a)
        pair.right.commit(pair.b)
        job = site.jobs.start(
            DIFFERENCE, opened.run.where, pair.title, partial(_compared, pair), key=pair.key, page=pair.page
        )
        job.wait(PATIENCE)
        return redirect(pair.page)

    @router.get("/runs/{address}/difference")
    def shown(request: Request, address: str) -> Response:
        asked = request.query_params
        a, b = whole(asked.get("a", "")), whole(asked.get("b", ""))
        left = site.opened(address)
        if a is None or b is None:
            raise Refused(
                "A comparison needs two checkpoints.", "Tick two boxes in the table of checkpoints."
            )
        right = site.opened(asked["other"]) if asked.get("other") else left
        if (left.run, a) == (right.run, b):
            raise Refused(
                "A checkpoint cannot be compared with itself.", "Tick two boxes in the table of checkpoints."
            )
        pair = Pair(left, a, right, b, asked.get("wall_clock", "") == "yes")
        latest = site.jobs.latest(DIFFERENCE, left.run.where, pair.key)
        job = None if latest is None else latest.seen()
        about: dict[str, object] = {
            "opened": left,
            "pair": pair,
            "job": job,
            "difference": None,
            # What was compared is shown also where one of the two was deleted since.
            "before": left.commit(a) if job is None else None,
            "after": right.commit(b) if job is None else None,
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
            request, "difference.html", title=f"Difference in {pair.names}", about=about, version=version
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
        "alone": [
            ("A", found.only_a, found.leaves_only_in("a")),
            ("B", found.only_b, found.leaves_only_in("b")),
        ],
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
    >>> far(LeafDifference(place="a", component="c", before="4086520183", after="17"))
    ''
    """
    return "" if leaf.distance is None else f"{leaf.distance:.3g}"


_ARRAY = re.compile(r"[<>|=]([iufc])([1-9]\d*)(?=\[)")
_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}


def _distance(leaf: LeafDifference) -> float:
    return float("-inf") if leaf.distance is None else -leaf.distance


def _pair(site: Site, left: Opened, chosen: set[int], other: str, with_: str, clocks: bool) -> Pair:  # noqa: FBT001
    """Return what a form asks to compare: two checkpoints that were ticked, or one with that of another run."""
    right = site.opened(other) if other else left
    if right.run != left.run:
        b = whole(with_)
        if len(chosen) != 1 or b is None:
            raise Refused(
                "A comparison of two runs needs one checkpoint of each.",
                "Go back, and choose one in the table of checkpoints.",
            )
        return Pair(left, min(chosen), right, b, clocks)
    if other and (b := whole(with_)) is not None:
        chosen = chosen | {b}
    if len(chosen) != 2:
        raise Refused(
            f"Two checkpoints can be compared, and {_were_chosen(chosen)}.",
            "Go back, and tick two boxes in the table of checkpoints.",
        )
    return Pair(left, min(chosen), left, max(chosen), clocks)


def _were_chosen(chosen: set[int]) -> str:
    return f"{len(chosen) or 'none'} {'was' if len(chosen) == 1 else 'were'} chosen"


def _compared(pair: Pair, job: Job) -> Difference:
    targets = [_target(side, sequence, job) for side, sequence in ((pair.left, pair.a), (pair.right, pair.b))]
    job.told(0, 0, "reading both checkpoints")
    return difference(*targets, wall_clock=pair.clocks)


def _target(opened: Opened, sequence: int, job: Job) -> Target:
    """Return a checkpoint, to be read so that it is counted and can be stopped."""
    run = opened.run
    plain_store = open_run(run.where)
    repository = Repository.over(Watched(plain_store.store, job.look), plain_store.job)
    commit = next((commit for commit in repository.commits() if commit.sequence == sequence), None)
    if commit is None:
        raise ConfigError(
            f"Checkpoint {sequence} was deleted by its run, {run.name}, before it was read.",
            hint="Choose among those that there are now.",
        )
    return Target(repository, run.where, commit)
