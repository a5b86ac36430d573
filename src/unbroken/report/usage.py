"""What checkpoints and components cost, as tables."""

from __future__ import annotations

from unbroken.repo.usage import Cost, RunCost
from unbroken.report.position import where
from unbroken.report.quantity import number, size
from unbroken.report.table import Cell, Column, Table

_COLUMNS = (
    Column("alone", numeric=True),
    Column("shared", numeric=True),
    Column("uncompressed", numeric=True),
    Column("ratio", numeric=True),
)


def usage_tables(run: str, cost: RunCost) -> list[Table | str]:
    """Return what a person reads of one run: its checkpoints, its components, and the totals."""
    checkpoints = Table((Column("step", numeric=True), Column("taken"), *_COLUMNS), title=run)
    for found in cost.checkpoints:
        commit = found.commit
        words = (
            Cell(f"damaged: {found.problem}", "bad")
            if found.problem
            else where(commit.position, commit.segment)
        )
        checkpoints.add(number(commit.step), words, *_cells(found.cost))
    components = Table((Column("component"), *_COLUMNS))
    for name, part in cost.components.items():
        components.add(name, *_cells(part))
    gone = ", ".join(number(commit.step) for commit in cost.passed_over)
    told: list[Table | str] = (
        [f"Passed over, since the run deleted it meanwhile: step {gone}", ""] if gone else []
    )
    dead = f"{size(cost.dead)} dead" + (f" (unbroken prune {run})" if cost.dead else "")
    return [
        checkpoints,
        "",
        components,
        "",
        *told,
        f"{size(cost.on_disk)} on disk: {size(cost.live)} live, {dead}",
    ]


def _cells(cost: Cost) -> tuple[str, str, str, str]:
    return size(cost.alone), size(cost.shared), size(cost.raw), f"{cost.ratio:.1f}x"


def as_data(run: str, cost: RunCost) -> dict[str, object]:
    """Return what a machine reads of one run; all sizes in bytes."""
    return {
        "run": run,
        "checkpoints": [
            {
                "step": found.commit.step,
                "sequence": found.commit.sequence,
                "directory": found.commit.directory,
                "problem": found.problem,
                **_facts(found.cost),
                "components": {name: _facts(part) for name, part in found.components.items()},
            }
            for found in cost.checkpoints
        ],
        "components": {name: _facts(part) for name, part in cost.components.items()},
        "passed_over": [commit.step for commit in cost.passed_over],
        "live": cost.live,
        "dead": cost.dead,
        "on_disk": cost.on_disk,
    }


def _facts(cost: Cost) -> dict[str, float]:
    return {
        "alone": cost.alone,
        "shared": cost.shared,
        "uncompressed": cost.raw,
        "ratio": round(cost.ratio, 3),
    }
