"""What a prune does or has done, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from shlex import quote

from unbroken.format import layout
from unbroken.repo.packsize import pack_bytes
from unbroken.repo.pruning import PrunePlan
from unbroken.report.position import where
from unbroken.report.quantity import counted, number, size
from unbroken.report.table import Cell, Column, Table


def plan_tables(plan: PrunePlan, size_of: Callable[[str], int], *, run: str) -> list[Table | str]:
    """Return what a person reads of a plan for `run`, a path or URL. `size_of` tells the bytes of an object."""
    parts: list[Table | str] = []
    if plan.retention is not None:
        parts += [_retention_table(plan), ""]
    parts.append(_work_table(plan, size_of))
    if plan.collection.spared:
        parts += ["", _spared_table(plan)]
    if plan.collection.needed is None:
        parts += [
            "",
            f"A checkpoint that counts cannot be read. Nothing goes that it might need; see: unbroken verify {quote(run)}",
        ]
    return parts


def freed_by(plan: PrunePlan, size_of: Callable[[str], int]) -> int:
    """Return the bytes by which the run gets smaller."""
    garbage = sum(_size(plan, key, size_of) for key in plan.collection.keys)
    return garbage + plan.compaction.freed - plan.compaction.written


def _retention_table(plan: PrunePlan) -> Table:
    table = Table((Column("step", numeric=True), Column("taken"), Column("fate"), Column("because")))
    for decision in plan.retention.decisions if plan.retention else ():
        commit = decision.commit
        fate = Cell("kept", "good") if decision.keep else Cell("goes", "quiet")
        taken = where(commit.position, commit.segment)
        table.add(number(commit.step), taken, fate, ", ".join(decision.reasons))
    return table


def _work_table(plan: PrunePlan, size_of: Callable[[str], int]) -> Table:
    table = Table((Column("what"), Column("objects", numeric=True), Column("bytes", numeric=True)))
    groups = {
        "commit records": plan.collection.commits,
        "documents": plan.collection.documents,
        "packs and indexes": plan.collection.packs,
        "birth documents": plan.collection.births,
    }
    for name, keys in groups.items():
        if keys:
            table.add(
                f"delete {name}", number(len(keys)), size(sum(_size(plan, key, size_of) for key in keys))
            )
    if plan.compaction.steps:
        rewritten = plan.compaction
        table.add("replace packs that are partly dead", number(len(rewritten.packs)), size(rewritten.freed))
        table.add("write what lives in them", number(len(rewritten.steps)), size(rewritten.written))
    table.add("free", "", size(freed_by(plan, size_of)))
    return table


def _spared_table(plan: PrunePlan) -> Table:
    reasons = Counter(spared.reason for spared in plan.collection.spared)
    table = Table((Column("stays", numeric=True), Column("although no checkpoint needs it, because")))
    for reason, many in sorted(reasons.items()):
        table.add(counted(many, "object"), reason)
    return table


def _size(plan: PrunePlan, key: str, size_of: Callable[[str], int]) -> int:
    name = layout.pack_name(key)
    if name is None or name not in plan.index.packs:
        return size_of(key)
    return pack_bytes(plan.index.packs[name]) if key.endswith(".pack") else 0
