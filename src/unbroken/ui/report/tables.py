"""The tables and the sentences of a report."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.engine.duration import percent
from unbroken.inspection.overview import CheckpointRow, Interruptions, Restart, RunOverview, interruptions
from unbroken.report.ending import ended
from unbroken.report.position import where
from unbroken.report.quantity import counted, moment, number, seconds, size
from unbroken.ui.charts.chart import Column, DataTable

NOT_KNOWN = "not known"
MOST_ROWS = 2000
"""So many of the newest rows of a table are shown."""
MOST_LETTERS = 400
"""Of a reason."""

WORDS = (
    (ended("soft"), "The process was gone, its machine was not: killed, out of memory, or an error."),
    (ended("hard"), "The machine restarted, or the run went on on another one."),
    (ended("data"), "The newest checkpoint was damaged, whatever had ended the process."),
    (ended("clean"), "The process closed the run and said why."),
    ("newest", "Training went on from the newest checkpoint."),
    ("older", "The newest could not be used: training went on from one before it."),
    ("rebuilt", "No checkpoint was whole; environments were rebuilt from the journal."),
    ("fresh", "Nothing that was saved could be used, or nothing was there: training began at the beginning."),
    (
        "steps lost",
        "Steps that were done once more. Not known where a process was killed between two saves: then they are at most those.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """A number at the top, its name, and what it rests on."""

    name: str
    value: str
    more: str = ""


def facts(run: RunOverview) -> tuple[Fact, ...]:
    """Return the numbers at the top."""
    newest = run.newest
    kept, saved = len(run.checkpoints), len(run.points)
    cut = interruptions(run.story, run.state)
    kinds = [f"{count} {ended(kind)}" for kind, count in cut.kinds.items()]
    took = [one.seconds for one in run.restarts if one.interrupted]
    return (
        Fact("Newest step", "none" if newest is None else number(newest.at), "" if newest is None else moment(newest.time)),
        Fact("Saves on record", number(saved), f"{counted(kept, 'checkpoint')} kept"),
        Fact("Interruptions", number(cut.count), ", ".join(kinds + ["nobody has gone on since"] * (run.state == "crashed"))),
        Fact("Steps lost", *_lost(cut)),
        Fact(
            "Recovered in",
            seconds(sum(took) / len(took)) if took else "none",
            f"on average; at most {seconds(max(took))}" if took else "",
        ),
        Fact(
            "On disk",
            NOT_KNOWN if run.cost is None else size(run.cost.on_disk),
            f"{size(run.cost.dead)} can be freed" if run.cost is not None and run.cost.dead else "",
        ),
        Fact("Budget for saving", "none on record" if run.budget is None else f"{percent(run.budget)} of the time"),
    )  # fmt: skip


def _lost(cut: Interruptions) -> tuple[str, str]:
    if cut.steps_lost is None:
        return NOT_KNOWN, "at most those between two saves"
    return number(
        cut.steps_lost
    ), f"and of {counted(cut.unknown, 'interruption')} not known" if cut.unknown else ""


def state_sentence(run: RunOverview) -> str:
    """Return how the run stands, as a sentence."""
    why = run.state_why
    return f"{why[:1].upper()}{why[1:]}."


def restarts_sentence(run: RunOverview) -> str:
    """Return how often the run was interrupted, as a sentence."""
    starts = [one for one in run.restarts if one.event == "start"]
    cut = sum(one.interrupted for one in starts)
    idle = sum(one.idle for one in starts)
    refused = sum(one.event == "refused" for one in run.restarts)
    if not run.restarts:
        return "No start of this run is on record."
    told = (
        f"{counted(len(starts), 'start')}; {counted(cut, 'time')} the process before had not closed the run."
    )
    if run.state == "crashed":
        told += " The last process has not either, and nobody has gone on since."
    if idle:
        told += f" {counted(idle, 'start')} found the training finished."
    return told + (f" {counted(refused, 'start')} refused." if refused else "")


def restarts_table(run: RunOverview) -> DataTable:
    """Return the starts and ends, oldest first."""
    columns = (
        Column("when"), Column("event"), Column("last ended"), Column("tier"), Column("step", numeric=True),
        Column("steps lost", numeric=True), Column("recovered in", numeric=True), Column("process"), Column("why", wide=True),
    )  # fmt: skip
    shown = run.restarts[-MOST_ROWS:]
    left = len(run.restarts) - len(shown)
    note = f"The first {counted(left, 'line')} are left out: unbroken history has them." if left else ""
    return DataTable(columns, tuple(map(_restart, shown)), note)


def checkpoints_table(run: RunOverview) -> DataTable:
    """Return the checkpoints, the latest written first."""
    columns = (
        Column("step", numeric=True), Column("taken"), Column("saved"), Column("alone", numeric=True),
        Column("shared", numeric=True), Column("uncompressed", numeric=True), Column("fidelity", wide=True), Column("state", wide=True),
        Column("reason", wide=True),
    )  # fmt: skip
    shown = run.checkpoints[:MOST_ROWS]
    left = len(run.checkpoints) - len(shown)
    note = f"Arrays are not read for this: unbroken verify {run.where} does."
    if left:
        note += f" The oldest {counted(left, 'checkpoint')} are left out: unbroken ls has them."
    return DataTable(columns, tuple(map(_checkpoint, shown)), note)


def warnings(run: RunOverview) -> list[str]:
    """Return what a person should look at."""
    damaged = [one for one in run.checkpoints if one.state == "damaged"]
    told = [
        f"The checkpoint of step {number(one.step)} cannot be used. {_short(one.problem.removeprefix('damaged: '))}" for one in damaged[:3]
    ]  # fmt: skip
    if len(damaged) > 3:
        told.append(f"{number(len(damaged) - 3)} more checkpoints are damaged: see the table.")
    told += [_short(line) for line in run.unreadable[:3]]
    if len(run.unreadable) > 3:
        told.append(
            f"{number(len(run.unreadable) - 3)} more records cannot be read: unbroken verify names them."
        )
    return told


def steps_lost(one: Restart) -> str:
    """Return how many steps a start had lost, as far as that is known."""
    if one.steps_lost is None:
        return NOT_KNOWN
    return f"{'at least ' * one.at_least}{number(one.steps_lost)}"


def _restart(one: Restart) -> tuple[str, ...]:
    process, why = (
        one.process,
        _short(
            "; ".join(
                [
                    *["found the training finished"] * one.idle,
                    *one.reasons,
                    *(f"changed: {c}" for c in one.changes),
                ]
            )
        ),
    )
    if one.event == "start":
        lost = "" if one.first else steps_lost(one)
        last = "first start" if one.first else ended(one.fault)
        return (
            moment(one.time), "start", last, one.tier, number(one.step), lost, seconds(one.seconds), process, why,
        )  # fmt: skip
    if one.event == "end":
        return (moment(one.time), "end", "", "", number(one.step), "", "", process, why)
    return (moment(one.time), "refused", "", "", "", "", "", process, why)


def _checkpoint(one: CheckpointRow) -> tuple[str, ...]:
    inexact = ", ".join(f"{name}: {promise}" for name, promise in one.inexact.items())
    words = {"set aside": one.aside, "left behind": one.abandoned, "saved again": one.saved_again}
    behind = next((f"; {word}" for word, holds in words.items() if holds), "")
    state = one.state if one.state == "good" else _short(one.problem)
    return (
        number(one.step),
        where(one.position, one.segment),
        moment(one.time),
        _sized(one.alone),
        _sized(one.shared),
        _sized(one.raw),
        _short(f"{one.fidelity} ({inexact})" if inexact else one.fidelity),
        state + behind,
        _short(one.reason),
    )


def _sized(value: int | None) -> str:
    return NOT_KNOWN if value is None else size(value)


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
