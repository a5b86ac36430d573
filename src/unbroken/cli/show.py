"""`unbroken show`: one checkpoint: its metadata, its components, or one component, as its view or its tree has it.

Not promised: how long a save was written in the background. What it cost is what training has felt, and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show as print_out
from unbroken.format.meta import ComponentCost
from unbroken.inspection.checkpoint import Checkpoint, describe, loaded
from unbroken.inspection.target import run_of
from unbroken.report.position import where
from unbroken.report.quantity import moment, number, seconds, size
from unbroken.report.shown import Shown
from unbroken.report.table import Cell, Column, Table
from unbroken.report.tree import Leaf, leaves
from unbroken.report.views import shown
from unbroken.state.parts import split_name
from unbroken.state.snapshot import Component
from unbroken.types import Fidelity

MOOD: Mapping[str, Literal["good", "quiet", "bad"]] = {
    Fidelity.EXACT.value: "good",
    Fidelity.APPROXIMATE.value: "quiet",
    Fidelity.NOT_CAPTURED.value: "bad",
}
TELLING = (
    "unbroken", "python", "numpy", "torch", "gymnasium", "stable_baselines3", "sb3_contrib", "ale_py",
    "mujoco", "Box2D", "minigrid",
)  # fmt: skip
"""Packages whose versions decide whether a resume is exact; others are counted."""


def show(
    run: Annotated[str, typer.Argument(help="A run, RUN@STEP, or a step's directory.")],
    step: Annotated[int | None, typer.Option(help="The step; default: the newest checkpoint.")] = None,
    component: Annotated[str, typer.Option(help="Show what this component holds.")] = "",
    cost: Annotated[bool, typer.Option("--cost", help="Show what saving each component cost.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every note, version and session.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Show one checkpoint: metadata, components, sizes and what each promises.

    `--cost`: `stood still` is how long training waited until the component was captured and copied. Of its
    arrays so much was captured, so much of that is new in the run, and so much was written: compressed, with
    its document.
    """
    target = run_of(run, step=step)
    if component:
        meta, held = target.read(
            lambda commit: (target.repository.meta(commit), loaded(target, commit, component))
        )
        view, why_not = shown(held, meta, every=every)
        if view is None:
            view = tree_shown(held)
        print_out(*([why_not, ""] if why_not else []), *view.parts, data=view.data, json=json)
        return EXIT_OK
    checkpoint = target.read(lambda commit: describe(target, commit))
    parts: list[Table | str] = [facts_table(checkpoint, every=every), "", components_table(checkpoint)]
    if checkpoint.environments:
        parts += ["", environments_table(checkpoint)]
    if cost:
        parts += ["", cost_table(checkpoint)]
    print_out(*parts, data=checkpoint, json=json)
    return EXIT_OK


def facts_table(checkpoint: Checkpoint, *, every: bool) -> Table:
    commit, meta = checkpoint.commit, checkpoint.meta
    table = Table((Column("checkpoint"), Column(checkpoint.path)))
    table.add("step", f"{number(commit.step)}, {where(commit.position, commit.segment)}")
    table.add("saved", f"{moment(commit.time)}{f', because: {meta.reason}' if meta.reason else ''}")
    table.add("process", f"{meta.pid} on {meta.host}")
    table.add("episodes", number(meta.episodes))
    table.add("weights", Cell("finite", "good") if commit.good else Cell("not finite", "bad"))
    table.add("signature", checkpoint.signature)
    for name, value in sorted(meta.metrics.items()):
        table.add(name, f"{value:.6g}")
    if meta.versions:
        table.add("versions", versions(meta.versions, every=every))
    for note in meta.notes if every else folded(meta.notes):
        table.add("note", note)
    return table


def versions(known: Mapping[str, str], *, every: bool) -> str:
    """Return the versions that matter, in one line; the others as their number unless all are wanted."""
    told = sorted(known) if every else [name for name in TELLING if name in known]
    words = [f"{name} {known[name]}" for name in told]
    left = len(known) - len(told)
    return ", ".join([*words, *([f"{left} more (--all)"] if left else [])])


def folded(notes: Sequence[str]) -> list[str]:
    """Return one note of each kind, the first, with the number of the others.

    >>> folded(["graph dropped: a (x)", "graph dropped: b (x)", "opaque: c (y)"])
    ['graph dropped: a (x), and 1 more like it (--all)', 'opaque: c (y)']
    """
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(note.partition(":")[0], []).append(note)
    more = {kind: f", and {number(len(of) - 1)} more like it (--all)" for kind, of in kinds.items()}
    return [of[0] + (more[kind] if len(of) > 1 else "") for kind, of in kinds.items()]


def components_table(checkpoint: Checkpoint) -> Table:
    columns = (
        Column("component"),
        Column("promise"),
        Column("document", numeric=True),
        Column("arrays", numeric=True),
        Column("reason"),
    )
    table = Table(columns)
    for row in checkpoint.components:
        promise = Cell(row.fidelity, MOOD[row.fidelity]) if row.fidelity in MOOD else row.fidelity
        table.add(row.component, promise, size(row.document_bytes), size(row.array_bytes), row.reason)
    return table


def environments_table(checkpoint: Checkpoint) -> Table:
    table = Table((Column("environments"), Column("", numeric=True), Column("where"), Column("captured by")))
    for seen in checkpoint.environments:
        table.add(seen.name, number(seen.count), seen.where, seen.way)
    return table


def cost_table(checkpoint: Checkpoint) -> Table:
    meta = checkpoint.meta
    names = ("stood still", "arrays", "captured", "new", "written")
    table = Table((Column("cost"), *(Column(name, numeric=True) for name in names)))
    arrays = {row.component: row.array_bytes for row in checkpoint.components}
    for name, nbytes in arrays.items():
        cost = meta.cost.get(name, ComponentCost())
        table.add(
            name,
            seconds(cost.seconds),
            size(nbytes),
            size(cost.captured),
            _told(cost.new),
            _told(cost.written),
        )
    own = [cost for name, cost in meta.cost.items() if split_name(name)[1] in (None, 0)]
    rest = max(0.0, meta.seconds_blocked - sum(cost.seconds for cost in own))
    table.add("for all of them", seconds(rest), "", "", "", "")
    every = meta.cost.values()
    table.add(
        "in all",
        seconds(meta.seconds_blocked),
        size(sum(arrays.values())),
        size(sum(cost.captured for cost in every)),
        _told(_sum(cost.new for cost in every)),
        _told(_sum(cost.written for cost in every)),
    )
    return table


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum, or None where one of them was not counted, or there are none."""
    known = list(counts)
    counted = [count for count in known if count is not None]
    return sum(counted) if counted and len(counted) == len(known) else None


def _told(nbytes: int | None) -> str:
    return "" if nbytes is None else size(nbytes)


def tree_shown(component: Component) -> Shown:
    """Return a component as the tree in which it is stored."""
    tree = tuple(leaves(component))
    return Shown([tree_table(tree)], {"component": component.name, "leaves": tree})


def tree_table(tree: tuple[Leaf, ...]) -> Table:
    table = Table((Column("place"), Column("value")))
    for leaf in tree:
        table.add(leaf.place, leaf.value)
    return table
