"""One checkpoint: its metadata, its components and what each promises, without its arrays."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.inspection.target import Target
from unbroken.repo.vouching import voucher
from unbroken.report.environments import COMPONENT as ENVIRONMENTS
from unbroken.report.environments import Environments, environments
from unbroken.state.parts import split_name
from unbroken.state.snapshot import Component


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
    environments: tuple[Environments, ...] = ()
    """By which way each was captured. What saving a component cost stands in `meta.cost`."""


def describe(target: Target, commit: Commit) -> Checkpoint:
    """Gather what is known of a checkpoint without loading its arrays."""
    repository = target.repository
    meta, manifest = repository.meta(commit), repository.manifest(commit)
    found: list[ComponentFacts] = []
    seen: tuple[Environments, ...] = ()
    for entry in sorted(manifest.documents.values(), key=lambda entry: entry.component):
        promise = meta.fidelity.get(entry.component)
        document = repository.document(commit, entry.component)
        if split_name(entry.component)[0] == ENVIRONMENTS:
            seen += environments(document.roots)
        found.append(
            ComponentFacts(
                entry.component,
                promise.fidelity.value if promise else "",
                promise.reason if promise else "",
                entry.size,
                sum(blob.size for blob in document.blobs),
            )
        )
    said = voucher(repository.manifest(commit))
    signature = f"{said.verdict.value}{f' ({said.key})' if said.key else ''}"
    return Checkpoint(target.place(commit), commit, meta, tuple(found), signature, seen)


def loaded(target: Target, commit: Commit, component: str) -> Component:
    """Return one component.

    Raises:
        ConfigError: the checkpoint has no such component; the error lists those that it has.
    """
    return target.repository.load(commit, [component]).components[component]
