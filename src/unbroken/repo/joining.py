"""One manifest and one metadata of what several ranks have written. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from unbroken.format.manifest import Manifest, RankPart
from unbroken.format.meta import ComponentCost, Meta
from unbroken.format.ranks import RankRecord
from unbroken.repo.encoding import EncodedComponent
from unbroken.state.parts import rank_name, split_name
from unbroken.types import Plain


def together(meta: Meta, others: Collection[RankRecord], *, replicated: Collection[str]) -> Meta:
    """Return the metadata of rank 0 with what the others say of their parts.

    Rank 0 states its facts as the others do, and what it promises of its own components goes by their names.
    """
    own = {"rank": 0, "pid": meta.pid, "host": meta.host, **status_of(meta)}

    def named(name: str) -> str:
        return name if name in replicated or split_name(name)[1] is not None else rank_name(name, 0)

    promised = {named(name): kept for name, kept in meta.fidelity.items()}
    spent = {named(name): cost for name, cost in meta.cost.items()}
    return msgspec.structs.replace(
        meta,
        worker_status=[own, *({"rank": r.rank, "pid": r.pid, "host": r.host, **r.status} for r in others)],
        fidelity={**promised, **{name: kept for r in others for name, kept in r.fidelity.items()}},
        cost={**spent, **{name: cost for r in others for name, cost in r.cost.items()}},
        good=meta.good and all(record.good for record in others),
        bytes=meta.bytes + sum(record.nbytes for record in others),
        notes=[*meta.notes, *(f"rank {r.rank}: {note}" for r in others for note in r.notes)],
    )


def spent_on(
    cost: Mapping[str, ComponentCost], parts: Collection[EncodedComponent]
) -> dict[str, ComponentCost]:
    """Return the cost of components with what was written of those that were encoded here."""
    found = dict(cost)
    for part in parts:
        if part.written is not None:
            known = found.get(part.entry.component, ComponentCost())
            found[part.entry.component] = msgspec.structs.replace(known, new=part.new, written=part.written)
    return found


def status_of(meta: Meta) -> dict[str, Plain]:
    """Return what one rank states of itself: its counters, and of its own workers and their seeds what it knows."""
    stated: dict[str, Plain] = dict(meta.counters)
    if meta.worker_status:
        stated["workers"] = [*meta.worker_status]
    if meta.env_seeds:
        stated["env_seeds"] = [*meta.env_seeds]
    return stated


def merged(manifest: Manifest, meta: Meta, others: Collection[RankRecord]) -> Manifest:
    """Return the manifest of rank 0 with the documents and blobs of all."""
    return msgspec.structs.replace(
        joined(manifest, others),
        ranks=[RankPart(birth=meta.birth), *(RankPart(birth=record.birth) for record in others)],
    )


def joined(manifest: Manifest, records: Collection[RankRecord]) -> Manifest:
    """Return the manifest with the documents and blobs of ranks that are all on record, rank 0 too."""
    return msgspec.structs.replace(
        manifest,
        documents={**manifest.documents, **{f: entry for r in records for f, entry in r.documents.items()}},
        blobs={**manifest.blobs, **{digest: size for r in records for digest, size in r.blobs.items()}},
        opaque=sorted({*manifest.opaque, *(place for r in records for place in r.opaque)}),
        ranks=[RankPart(birth=record.birth) for record in records],
    )
