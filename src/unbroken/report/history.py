"""The starts and ends of a run, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from unbroken.format.records import HistoryRecord
from unbroken.report.quantity import moment, number, seconds
from unbroken.report.table import Cell, Column, Table

COLUMNS = (
    Column("when"),
    Column("event"),
    Column("last ended"),
    Column("tier"),
    Column("step", numeric=True),
    Column("steps lost", numeric=True),
    Column("recovered in", numeric=True),
    Column("process"),
    Column("why"),
)
UNKNOWN = "not known"
MOST = 100
"""Letters of a reason that a table shows; `--json` has all of it."""


def history_table(records: Sequence[HistoryRecord]) -> Table:
    """Return one line for each start and each end, oldest first. Of long reasons it shows the beginning."""
    table = Table(COLUMNS)
    for record in records:
        process = f"{record.pid} on {record.host}"
        why = _short([*record.reasons, *_changed(record)])
        if record.event == "start":
            table.add(
                moment(record.time), "start", record.fault or "first start", record.tier, number(record.step),
                _lost(record), seconds(record.seconds), process, why,
            )  # fmt: skip
        elif record.event == "end":
            table.add(moment(record.time), "end", "", "", number(record.step), "", "", process, why)
        else:
            table.add(moment(record.time), Cell("refused", "bad"), "", "", "", "", "", process, why)
    return table


def history_data(records: Sequence[HistoryRecord]) -> list[dict[str, object]]:
    """Return the same for a machine; what is not known is null."""
    return [
        {
            "time": record.time,
            "event": record.event,
            "fault": record.fault or None,
            "tier": record.tier or None,
            "step": None if record.event == "refused" else record.step,
            "sequence": record.sequence or None,
            "steps_lost": None if record.steps_lost < 0 else record.steps_lost,
            "steps_lost_at_least": bool(record.lost_at_least),
            "seconds": record.seconds if record.event == "start" else None,
            "pid": record.pid,
            "host": record.host,
            "reasons": record.reasons,
            "changes": record.changes,
        }
        for record in records
    ]


def _short(reasons: Sequence[str]) -> str:
    """Return as many reasons, or lines of one, as there is room for, and how many are left out."""
    parts = [
        part.strip().removeprefix("- ") for reason in reasons for part in reason.splitlines() if part.strip()
    ]
    shown: list[str] = []
    for part in parts:
        if shown and len("; ".join([*shown, part])) > MOST:
            break
        shown.append(part if len(part) <= MOST else f"{part[: MOST - 1]}…")
    left = len(parts) - len(shown)
    return "; ".join([*shown, *([f"and {left} more (--json)"] if left else [])])


def _changed(record: HistoryRecord) -> list[str]:
    return [f"changed: {change}" for change in record.changes]


def _lost(record: HistoryRecord) -> str:
    if record.tier == "fresh":
        return ""
    if record.steps_lost < 0:
        return UNKNOWN
    return f"{'at least ' if record.lost_at_least else ''}{number(record.steps_lost)}"
