"""`unbroken prove`: kill a script again and again, and show that it ends as if nothing had happened."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from unbroken.cli.guard import EXIT_FAILED, EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.errors import ConfigError
from unbroken.proving.launch import KillTarget
from unbroken.proving.proof import prove as carry_out
from unbroken.report.comparison import comparison_table, promises_told
from unbroken.report.position import where
from unbroken.report.proof import Kill, ProveResult, Verdict
from unbroken.report.quantity import counted, number, seconds
from unbroken.report.table import Cell, Column, Table

TARGETS: dict[str, KillTarget] = {"tree": "tree", "trainer": "trainer"}
EXITS: dict[Verdict, int] = {
    "equal": EXIT_OK,
    "equal as far as captured": EXIT_OK,
    "different": EXIT_NO,
    "not proved": EXIT_FAILED,
    "snapshot lost": EXIT_NO,
    "left behind": EXIT_NO,
}


def prove(
    command: Annotated[list[str], typer.Argument(help="The script as it is always started, after `--`.")],
    kills: Annotated[int, typer.Option(help="How many times to kill it.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides the moments of the kills.")] = 7,
    kill: Annotated[
        str, typer.Option(help="tree: all processes; trainer: only the one that trains.")
    ] = "tree",
    keep: Annotated[
        Path | None, typer.Option(help="Keep both runs and the script's output in this new directory.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds that one start of the script may take.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="List what was not compared, leaf by leaf.")] = (
        False
    ),
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Run a script undisturbed and killed with SIGKILL; exit 0 only if both end exactly alike.

    Exit status 1: they differ, or with --kill trainer a snapshot was lost that was handed to the process that
    writes, or something was left behind on the disk, in memory or as a process. 2: it could not be proved (the script failed, ended before it was killed
    often enough, no restart restored anything, or a part of the state is in no checkpoint).
    """
    if kill not in TARGETS:
        raise ConfigError(f"--kill {kill} is neither tree nor trainer.", hint="Use --kill tree.")
    with Bar() as bar:
        result = carry_out(
            command, kills=kills, seed=seed, target=TARGETS[kill], timeout=timeout, keep=keep, observer=bar
        )
    show(*tables(result, verbose=verbose), data=document(result), json=json)
    return EXITS[result.verdict]


NOTHING_LEFT = (
    "Left behind: nothing (temporary files, objects without a checkpoint, pending record, lease, processes, shared"
    " memory)."
)


class Bar:
    """Shows how far a run has come: a bar on a terminal, elsewhere a line for each phase and each kill.

    On standard error, so that a pipe gets the result alone.
    """

    def __init__(self) -> None:
        console = self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._what = ""
        self._kills = 0

    def begins(self, what: str, steps: int) -> None:
        if self._task is not None:
            self._progress.stop_task(self._task)
        self._what = what
        self._task = self._progress.add_task(what, total=steps or None)
        self._line(f"{what} begins" + (f": {counted(steps, 'step')}" if steps else ""))

    def reached(self, step: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=step)

    def killed(self, kill: Kill) -> None:
        self._kills += 1
        self._line(f"kill {self._kills} at step {number(kill.step)}, last saved {number(kill.committed)}")
        if self._task is not None:
            self._progress.update(self._task, description=f"{self._what}, {self._kills} killed")

    def _line(self, words: str) -> None:
        if not self._console.is_terminal:
            self._console.file.write(f"unbroken: {words}\n")
            self._console.file.flush()

    def __enter__(self) -> Bar:  # noqa: PYI034 - Self needs Python 3.11
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def tables(result: ProveResult, *, verbose: bool) -> list[Table | str]:
    """Return what a person reads."""
    parts: list[Table | str] = [starts_table(result), resumed_told(result)]
    if result.handed_over:
        parts.append(outlived_told(result))
    parts.append("")
    for final in result.finals:
        title = f"{final.job}, step {number(final.step)}, {where('end', final.segment)}"
        if final.missing:
            parts.append(f"{title}: the {final.missing} run never reached this end")
        else:
            parts.append(comparison_table(final.components, title=title))
        parts += [*promises_told(final.components), ""]
    parts += [f"Left behind: {found}" for found in result.left_behind] or [NOTHING_LEFT]
    lost = result.lost_seconds
    parts.append(
        f"Wall time: {seconds(result.undisturbed_seconds)} undisturbed, {seconds(result.killed_seconds)} with "
        f"{counted(len(result.kills), 'kill')}: {seconds(abs(lost))} {'lost' if lost >= 0 else 'gained'}."
    )
    parts.append(
        "Wall-clock times were not compared, everything else was."
        + (" They are:" if verbose else " A list of them: --verbose.")
    )
    if verbose:
        parts += [f"  {leaf}" for leaf in result.left_out]
    if result.directory is not None:
        parts.append(f"Kept in {result.directory}")
    parts.append(f"{shlex.join(result.command)}: {verdict_told(result)}")
    return parts


def resumed_told(result: ProveResult) -> str:
    """Return how many kills tested a resume: one that is followed by a start from step 0 tests nothing."""
    kills, again = len(result.kills), len(result.kills) - result.resumed
    return f"Kills followed by a resume from a checkpoint after step 0: {result.resumed} of {kills}." + (
        f" After the other {again} it began again at step 0, which tests no resume." if again else ""
    )


def outlived_told(result: ProveResult) -> str:
    """Return what became of the snapshots that another process was to commit."""
    return (
        "Kills of the trainer alone after it had handed a snapshot to the process that writes (writer=process):"
        f" {result.handed_over}; the next start went on from that snapshot: {result.outlived}."
    )


def verdict_told(result: ProveResult) -> str:
    """Return the answer, with what it does not cover."""
    rows = [row for final in result.finals for row in final.components]
    parts = list(dict.fromkeys(promises_told(rows)))
    if result.verdict == "equal as far as captured":
        return f"equal as far as captured: {'; '.join(parts)}"
    if result.verdict == "snapshot lost":
        return "snapshot lost: the ends are equal, but what was handed to the process that writes was not committed"
    if result.verdict == "left behind":
        return f"left behind: the ends are equal, but {counted(len(result.left_behind), 'thing')} should not be there"
    if result.verdict == "not proved":
        return f"not proved: what the checkpoints hold is equal, but {'; '.join(parts)}"
    return result.verdict


def starts_table(result: ProveResult) -> Table:
    columns = (
        Column("start", numeric=True),
        Column("resumed from step", numeric=True),
        Column("tier"),
        Column("killed at step", numeric=True),
        Column("last saved", numeric=True),
        Column("after", numeric=True),
    )
    table = Table(
        columns, title=f"Killed run ({result.target}, seed {result.seed}, {number(result.steps)} steps)"
    )
    for place, start in enumerate(result.starts, start=1):
        steps = ", ".join(number(resume.step) for resume in start.resumes)
        tiers = ", ".join(resume.tier if resume.restored else "start" for resume in start.resumes)
        if start.kill is None:
            table.add(str(place), steps, tiers, Cell("ran to its end", "quiet"), "", "")
        else:
            kill = start.kill
            killed = (number(kill.step), number(kill.committed), seconds(kill.seconds))
            table.add(str(place), steps, tiers, *killed)
    return table


def document(result: ProveResult) -> dict[str, Any]:
    """Return a result for machines: the record, with what follows from it."""
    found: dict[str, Any] = msgspec.to_builtins(result, enc_hook=str)
    for final, row in zip(result.finals, found["finals"], strict=True):
        row["equal"] = final.equal
        for component, line in zip(final.components, row["components"], strict=True):
            line["equal"] = component.equal
    return {
        "verdict": result.verdict,
        "equal": result.equal,
        "resumed": result.resumed,
        "handed_over": result.handed_over,
        "outlived": result.outlived,
        "lost_seconds": result.lost_seconds,
        **found,
    }
