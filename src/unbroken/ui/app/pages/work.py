"""What takes longer than a page: `verify`, measuring, planning a prune and, where it is allowed, carrying it out.

A prune that deletes needs two confirmations: the plan is shown, and the form that carries it out names the very plan that
was shown. Where the run has changed since, nothing is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.errors import ConfigError
from unbroken.format.records import Commit
from unbroken.inspection.pruned import Pruned, carried_out, planned
from unbroken.inspection.target import Target, open_run
from unbroken.inspection.verification import Verification, verified
from unbroken.inspection.watched import Watched
from unbroken.repo.pruning import check_idle, plan_prune
from unbroken.repo.repository import Repository
from unbroken.repo.usage import RunCost, measure, sizes_of
from unbroken.report.pruning import plan_tables
from unbroken.report.quantity import number
from unbroken.report.table import Table
from unbroken.store.base import ByteStore
from unbroken.ui.app.catalogue import Run
from unbroken.ui.app.jobs import Job
from unbroken.ui.app.paging import page_number, paged
from unbroken.ui.app.site import Fields, Missing, Refused, Site, link, one, redirect, whole

VERIFY, MEASURE, PLAN, PRUNE = "verify", "measure", "prune plan", "prune"
PATIENCE = 0.5
"""Seconds that a browser waits for work that may be over at once."""
LINES = 100
"""Of a result, on a page."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a prune would do, as it was shown. `name` is another one for every other plan."""

    name: str
    keep_last: int | None
    tables: Sequence[Table | str]
    pruned: Pruned
    sequences: tuple[int, ...]
    """The checkpoints that were there."""

    @property
    def is_empty(self) -> bool:
        return not (self.pruned.deleted or self.pruned.rewritten)


def routes(site: Site) -> APIRouter:
    """Return the forms that begin work, and the pages that show it."""
    router = APIRouter()

    @router.post("/runs/{address}/verify")
    def verify(address: str, fields: Fields) -> Response:
        opened = site.opened(address)
        sequence = whole(one(fields, "checkpoint"))
        commit = None if sequence is None else opened.commit(sequence)
        title = f"Verify {opened.run.name}" + ("" if commit is None else f" at step {number(commit.step)}")
        work = partial(_verify, opened.run, sequence)
        return _begun(site.jobs.start(VERIFY, opened.run.where, title, work, key=(sequence,)))

    @router.post("/runs/{address}/measure")
    def measured(address: str, _: Fields) -> Response:
        opened = site.opened(address)
        job = site.jobs.start(
            MEASURE, opened.run.where, f"Measure {opened.run.name}", partial(_measure, opened.run)
        )
        job.wait(PATIENCE)
        return redirect(f"{opened.address}#checkpoints") if job.state == "done" else _begun(job)

    @router.post("/runs/{address}/prune/plan")
    def plan(address: str, fields: Fields) -> Response:
        opened = site.opened(address)
        keep_last = _keep_last(one(fields, "keep_last"))
        title = f"Plan a prune of {opened.run.name}"
        work = partial(_plan, opened.run, keep_last)
        return _begun(site.jobs.start(PLAN, opened.run.where, title, work, key=(keep_last,)))

    @router.post("/runs/{address}/prune")
    def prune(address: str, fields: Fields) -> Response:
        if not site.allow_write:
            raise Refused(
                "These pages only look: nothing is deleted from here.",
                "Start them with --allow-write, or use the command: unbroken prune",
            )
        opened = site.opened(address)
        if one(fields, "confirmed") != "yes":
            raise Refused(
                "The box that confirms the deletion was not ticked. Nothing was deleted.",
                "Go back and tick it.",
            )
        keep_last = _keep_last(one(fields, "keep_last"))
        work = partial(_prune, opened.run, keep_last, one(fields, "plan"))
        title = f"Prune {opened.run.name}"
        return _begun(site.jobs.start(PRUNE, opened.run.where, title, work))

    @router.get("/jobs/{name}")
    def job(request: Request, name: str) -> Response:
        found = _job(site, name).seen()
        run = next((run for run in site.catalogue.runs() if run.where == found.run), None)
        about: dict[str, object] = {
            "job": found,
            "run": run,
            "run_address": "" if run is None else f"/runs/{quote(run.address)}",
            "verification": None,
            "plan": None,
            "pruned": None,
            "cost": found.result if isinstance(found.result, RunCost) else None,
        }
        if isinstance(found.result, Verification):
            asked = request.query_params
            bad = [(c, fault) for c in found.result.checkpoints for fault in c.faults]
            about |= {
                "verification": found.result,
                "checked": paged(
                    found.result.checkpoints, page_number(asked.get("page", "1")), size=LINES, query=asked
                ),
                "faults": paged(
                    bad, page_number(asked.get("faults", "1")), size=LINES, parameter="faults", query=asked
                ),
            }
        elif isinstance(found.result, Plan):
            about["plan"] = found.result
        elif isinstance(found.result, Pruned):
            about["pruned"] = found.result
        version = (
            found.id,
            found.state,
            found.ended,
            found.done,
            found.words,
            found.read >> 20,
            found.is_stopping,
            dict(request.query_params),
        )
        return site.page(request, "job.html", title=found.title, about=about, version=version)

    @router.post("/jobs/{name}/cancel")
    def cancel(name: str, _: Fields) -> Response:
        found = _job(site, name)
        found.cancel()
        found.wait(PATIENCE)
        return redirect(f"/jobs/{found.id}")

    return router


def _begun(job: Job) -> Response:
    job.wait(PATIENCE)
    return redirect(link(f"/jobs/{job.id}"))


def _job(site: Site, name: str) -> Job:
    found = site.jobs.get(name)
    if found is None:
        raise Missing
    return found


def _keep_last(text: str) -> int | None:
    if not text.strip():
        return None
    kept = whole(text.strip())
    if not kept:
        raise Refused(
            f"{text[:40]!r} is no number of checkpoints to keep.",
            "Give 1 or more, or leave it empty to keep all.",
        )
    return kept


def _watched(run: Run, job: Job) -> Repository:
    """Open a run so that whoever reads it is counted and stopped. What pages remember of it is not asked."""
    plain = open_run(run.where)
    return Repository.over(Watched(plain.store, job.look), plain.job)


def _verify(run: Run, sequence: int | None, job: Job) -> Verification:
    repository = _watched(run, job)
    commit = next((c for c in repository.commits() if c.sequence == sequence), None)
    if sequence is not None and commit is None:
        raise ConfigError("The checkpoint was deleted by its run.", hint="Look at those that there are now.")

    def told(done: int, total: int, step: int) -> None:
        job.told(done, total, f"step {number(step)}")

    result = verified(Target(repository, run.where, commit), told=told)
    job.told(len(result.checkpoints), len(result.checkpoints))
    return result


def _measure(run: Run, job: Job) -> object:
    return measure(_watched(run, job).store)


def _plan(run: Run, keep_last: int | None, job: Job) -> Plan:
    store = _watched(run, job).store
    return _planned(run, store, keep_last)


def _planned(run: Run, store: ByteStore, keep_last: int | None) -> Plan:
    plan = plan_prune(store, keep_last=keep_last)
    there = sizes_of(store)

    def size_of(key: str) -> int:
        return there.get(key, 0)

    sequences = tuple(commit.sequence for commit in plan.inventory.log.commits)
    told = repr((sequences, plan.collection.keys, plan.compaction.packs))
    name = hashlib.sha256(told.encode()).hexdigest()
    tables = plan_tables(plan, size_of, run=run.where)
    return Plan(name, keep_last, tables, planned(run.where, plan, size_of), sequences)


def _prune(run: Run, keep_last: int | None, name: str, job: Job) -> Pruned:
    """Delete what the plan of this name deletes. Once it has begun it is not stopped: it is safe at every moment, but what
    it has begun should not be left half done.

    Raises:
        ConfigError: the run has changed since the plan was shown.
        RunBusy: a process works on the run.
    """
    repository = open_run(run.where)
    store = repository.store
    shown = _planned(run, store, keep_last)
    changed = ConfigError(
        f"{run.name} has changed since the plan was shown. Nothing was deleted.",
        hint="Make the plan again, and look at it.",
    )
    if shown.name != name:
        raise changed
    check_idle(store, repository.job, otherwise="use the command, with --take-over")
    job.look()

    def agreed(commits: Sequence[Commit]) -> None:
        if tuple(commit.sequence for commit in commits) != shown.sequences:
            raise changed  # before the run was ours, somebody has saved in it

    return carried_out(run.where, repository, keep_last=keep_last, agreed=agreed)
