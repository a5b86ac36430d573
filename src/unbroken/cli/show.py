"""`unbroken show`: one checkpoint: its metadata, its components, or the tree of one component."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show as print_out
from unbroken.cli.target import Target, run_of
from unbroken.errors import ConfigError
from unbroken.format.document import decode
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.report.quantity import moment, number, seconds, size
from unbroken.report.table import Cell, Column, Table
from unbroken.report.tree import Leaf, leaves
from unbroken.types import Fidelity

MOOD = {Fidelity.EXACT: "good", Fidelity.APPROXIMATE: "quiet", Fidelity.NOT_CAPTURED: "bad"}


@dataclass(frozen=True, slots=True)
class ComponentFacts:
    """What a checkpoint says of one component. Sizes are uncompressed and in bytes."""

    component: str
    fidelity: str
    reason: str
    document_bytes: int
    array_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint, as `show` tells it."""

    path: str
    commit: Commit
    meta: Meta
    components: tuple[ComponentFacts, ...]
    signature: str


def show(
    run: Annotated[str, typer.Argument(help="A run, RUN@STEP, or a step's directory.")],
    step: Annotated[int | None, typer.Option(help="The step; default: the newest checkpoint.")] = None,
    component: Annotated[str, typer.Option(help="Show the tree of this component.")] = "",
    cost: Annotated[bool, typer.Option("--cost", help="Show what saving it cost.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Show one checkpoint: metadata, components, sizes and what each promises."""
    target = run_of(run, step=step)
    commit = target.checkpoint()
    if component:
        tree = tuple(leaves_of(target, commit, component))
        print_out(tree_table(tree), data={"component": component, "leaves": tree}, json=json)
        return EXIT_OK
    checkpoint = describe(target, commit)
    parts: list[Table | str] = [facts_table(checkpoint), "", components_table(checkpoint)]
    if cost:
        parts += ["", cost_table(checkpoint)]
    print_out(*parts, data=checkpoint, json=json)
    return EXIT_OK


def describe(target: Target, commit: Commit) -> Checkpoint:
    """Gather what is known of a checkpoint without loading its arrays."""
    repository = target.repository
    meta, manifest = repository.meta(commit), repository.manifest(commit)
    found: list[ComponentFacts] = []
    for name, entry in sorted(manifest.documents.items(), key=lambda item: item[1].component):
        promise = meta.fidelity.get(entry.component)
        key = f"{commit.directory}/{name}"
        document = decode(repository.store.get(key), entry.format, key=key)
        found.append(
            ComponentFacts(
                entry.component,
                promise.fidelity.value if promise else "",
                promise.reason if promise else "",
                entry.size,
                sum(blob.size for blob in document.blobs),
            )
        )
    valid = repository.signature_valid(commit)
    signature = "not needed" if valid is None else "valid" if valid else "not valid"
    return Checkpoint(str(target.path / commit.directory), commit, meta, tuple(found), signature)


def facts_table(checkpoint: Checkpoint) -> Table:
    commit, meta = checkpoint.commit, checkpoint.meta
    table = Table((Column("checkpoint"), Column(checkpoint.path)))
    table.add("step", number(commit.step))
    table.add("segment", f"{commit.segment} ({commit.position})")
    table.add("saved", f"{moment(commit.time)}{f', because: {meta.reason}' if meta.reason else ''}")
    table.add("process", f"{meta.pid} on {meta.host}")
    table.add("episodes", number(meta.episodes))
    table.add("weights", Cell("finite", "good") if commit.good else Cell("not finite", "bad"))
    table.add("signature", checkpoint.signature)
    for name, value in sorted(meta.metrics.items()):
        table.add(name, f"{value:.6g}")
    if meta.versions:
        table.add(
            "versions", ", ".join(f"{name} {version}" for name, version in sorted(meta.versions.items()))
        )
    for note in meta.notes:
        table.add("note", note)
    return table


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
        table.add(row.component, row.fidelity, size(row.document_bytes), size(row.array_bytes), row.reason)
    return table


def cost_table(checkpoint: Checkpoint) -> Table:
    meta = checkpoint.meta
    table = Table((Column("cost"), Column("", numeric=True)))
    table.add("training stood still", seconds(meta.seconds_blocked))
    table.add("arrays, uncompressed", size(meta.bytes))
    return table


def leaves_of(target: Target, commit: Commit, component: str) -> Iterator[Leaf]:
    """Yield the leaves of one component.

    Raises:
        ConfigError: the checkpoint has no such component.
    """
    names = sorted(e.component for e in target.repository.manifest(commit).documents.values())
    if component not in names:
        raise ConfigError(
            f"The checkpoint holds no component {component!r}.", hint=f"There are: {', '.join(names)}."
        )
    yield from leaves(target.repository.load(commit, [component]).components[component])


def tree_table(tree: tuple[Leaf, ...]) -> Table:
    table = Table((Column("place"), Column("value")))
    for leaf in tree:
        table.add(leaf.place, leaf.value)
    return table
