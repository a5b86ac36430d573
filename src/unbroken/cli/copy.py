"""`unbroken copy`: checkpoints of a run into another root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.errors import ConfigError
from unbroken.inspection.target import Target, run_named, run_of, split
from unbroken.repo import copying
from unbroken.repo.copying import Copied
from unbroken.repo.pruning import check_idle
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of
from unbroken.repo.run_writer import RunWriter
from unbroken.report.position import where
from unbroken.report.quantity import number, size
from unbroken.report.table import Cell, Column, Table


@dataclass(frozen=True, slots=True)
class Copies:
    """What was copied, in this order."""

    source: str
    target: str
    checkpoints: tuple[Copied, ...]


def copy(
    source: Annotated[str, typer.Argument(help="A run, RUN@STEP, or a root that holds the run.")],
    target: Annotated[str, typer.Argument(help="The root to copy to: a directory or a URL.")],
    job: Annotated[str, typer.Option("--job", help="The run, where the source holds several.")] = "",
    step: Annotated[int | None, typer.Option("--step", help="Copy this step. Default: the newest.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Copy every checkpoint, the oldest first.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Copy checkpoints into another root, as a run of the same name.

    Every byte is checked on the way. The run may be in training: what it deletes meanwhile is passed over.
    What the target holds already is not copied again, so an interrupted
    copy is simply started again. The last one copied is the newest of the target: a start there goes on from it.
    """
    path, at = split(source)
    named = (
        run_of(f"{run_named(path, job)}{f'@{at}' if at else ''}", step=step)
        if job
        else run_of(source, step=step)
    )
    if every and named.commit is not None:
        raise ConfigError("--all copies every step.", hint="Leave out the step, or --all.")
    named.checkpoint()  # without one there is nothing to copy
    run = root_of(target, name="TARGET").run(named.repository.job)
    if _is_same(named.where, run):
        raise ConfigError(f"{run} is the source itself.", hint="Give another root.")
    into = Repository.open(target, named.repository.job, create=True)
    check_idle(into.store, into.job, otherwise="prune that run with --take-over first")
    with into.writer() as writer:
        copies = tuple(_copies(named, into, writer, every=every))
        if copies:
            copying.copy_saves_or_warn(named.repository, into, writer)
    if not copies:
        raise ConfigError(
            "The run has deleted what was to be copied before it could be: it keeps only some checkpoints.",
            hint="Copy the newest, without a step.",
        )
    show(_table(copies), "", f"Copied to {run}", data=Copies(named.where, run, copies), json=json)
    return EXIT_OK


def _copies(named: Target, into: Repository, writer: RunWriter, *, every: bool) -> Iterator[Copied]:
    source = named.repository
    if every:
        yield from copying.copy(source, source.commits()[::-1], into, writer)
    elif named.commit is not None:
        yield from copying.copy(source, [named.commit], into, writer)
    elif (copied := copying.copy_newest(source, into, writer)) is not None:
        yield copied


def _table(copies: Iterable[Copied]) -> Table:
    table = Table(
        (Column("step", numeric=True), Column("taken"), Column("written", numeric=True), Column(""))
    )
    for copied in copies:
        done = Cell("was there", "quiet") if copied.was_there else Cell("copied", "good")
        commit = copied.source
        table.add(number(commit.step), where(commit.position, commit.segment), size(copied.nbytes), done)
    return table


def _is_same(one: str, other: str) -> bool:
    return root_of(one).text == root_of(other).text
