"""One HTML file with all that there is to see of a run.

Invariants: the file asks nobody for anything, and its content security policy keeps it from doing so; only its own
scripts run, named by their digests. Every text that comes from the run is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from importlib import metadata

from unbroken.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from unbroken.format.records import Commit
from unbroken.inspection.makeup import makeup
from unbroken.inspection.overview import RunOverview, overview_of
from unbroken.inspection.remembered import Memory, remembering
from unbroken.inspection.target import Target
from unbroken.repo.repository import Repository
from unbroken.report.quantity import moment, number
from unbroken.ui.charts.chart import Chart, DataTable
from unbroken.ui.charts.costs import save_cost, sizes
from unbroken.ui.charts.curves import reward_and_loss
from unbroken.ui.charts.treemap import treemap
from unbroken.ui.libraries import own_file, plotly_js, templates
from unbroken.ui.report import tables


def report(target: Target, *, now: float) -> str:
    """Return the report of a run as HTML. `now`: seconds since 1970-01-01 UTC.

    Inside is shown the checkpoint that the target names, else the newest that can be read.

    Raises:
        ConfigError: a library is not installed.
        StoreError: the store does not answer.
    """
    template = templates().get_template("report.html")
    scripts = (plotly_js(), own_file("charts.js"), own_file("page.js"))
    # Its parts ask for the same records, and in a bucket each is a request.
    target = replace(target, repository=remembering(target.repository, target.where, Memory()))
    run = overview_of(target, now=now)
    return template.render(
        run=run,
        state_sentence=tables.state_sentence(run),
        warnings=tables.warnings(run),
        facts=tables.facts(run),
        curves=reward_and_loss(run.story, crashed=run.state == "crashed"),
        restarts=tables.restarts_table(run),
        restarts_sentence=tables.restarts_sentence(run),
        words=tables.WORDS,
        checkpoints=tables.checkpoints_table(run),
        makeup=_inside(target, run),
        costs=(save_cost(run.story, run.budget), sizes(run.story)),
        version=metadata.version("unbroken"),
        made=moment(now),
        style=own_file("page.css"),
        scripts=scripts,
        policy=policy(scripts),
    )


def policy(scripts: tuple[str, ...]) -> str:
    """Return the content security policy of a page that may run these inline scripts, and load nothing.

    Styles are inline: plotly.js sets them on what it draws.
    """
    digests = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _inside(target: Target, run: RunOverview) -> Chart:
    """Return the treemap of the named checkpoint, or of the newest that can be read."""
    costs = {} if run.cost is None else {one.commit.sequence: one for one in run.cost.checkpoints}
    named = target.commit
    problem = "The run holds no checkpoint."
    for commit in [named] if named is not None else target.repository.commits():
        title = f"The checkpoint of step {number(commit.step)}"
        try:
            return treemap(makeup(target.repository, commit, costs.get(commit.sequence)), title=title)
        except (CorruptObject, ObjectMissing, UnsupportedFormat) as error:
            if not _deleted(target.repository, commit):
                problem = f"{title} cannot be read: {error.message}"
    return Chart("makeup", "Components", "", {}, DataTable((), ()), nothing=problem)


def _deleted(repository: Repository, commit: Commit) -> bool:
    return repository.gone(commit)
