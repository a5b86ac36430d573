"""`unbroken ls`: the runs under a root and their checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.cli.target import find_run, open_run, runs_below
from unbroken.errors import ConfigError
from unbroken.format.records import Commit
from unbroken.report.quantity import moment, number
from unbroken.report.table import Cell, Column, Table

COLUMNS = (
    Column("run"),
    Column("step", numeric=True),
    Column("segment", numeric=True),
    Column("at"),
    Column("saved"),
    Column("weights"),
    Column("metrics"),
)


@dataclass(frozen=True, slots=True)
class RunListing:
    """One run and its checkpoints, newest first."""

    run: str
    checkpoints: tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """All runs under a root."""

    root: str
    runs: tuple[RunListing, ...]


def ls(
    root: Annotated[
        str, typer.Argument(help="A root with runs, or one run. Default: UNBROKEN_ROOT, else here.")
    ] = "",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """List runs and their checkpoints, newest first."""
    listing = list_runs(Path(root or os.environ.get("UNBROKEN_ROOT") or "."))
    table = Table(COLUMNS)
    for run in listing.runs:
        if not run.checkpoints:
            table.add(run.run, Cell("none yet", "quiet"), "", "", "", "", "")
        for commit in run.checkpoints:
            table.add(run.run, *cells(commit))
    show(table, data=listing, json=json)
    return EXIT_OK


def list_runs(path: Path) -> Listing:
    """Return the runs that `path` is or holds.

    Raises:
        ConfigError: there are none.
    """
    found = runs_below(path) if path.is_dir() else [find_run(path)]
    if not found:
        raise ConfigError(
            f"{path} holds no runs.", hint="Name the root that the training writes to, or set UNBROKEN_ROOT."
        )
    return Listing(str(path), tuple(_listing(run) for run in found))


def cells(commit: Commit) -> tuple[str | Cell, ...]:
    """Return what a table says of one checkpoint."""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(commit.metrics.items()))
    return (
        number(commit.step),
        str(commit.segment),
        commit.position,
        moment(commit.time),
        Cell("finite", "quiet") if commit.good else Cell("not finite", "bad"),
        metrics,
    )


def _listing(run: Path) -> RunListing:
    return RunListing(str(run), tuple(open_run(run).commits()))
