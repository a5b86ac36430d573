"""`StorageWriter`: what torch.distributed.checkpoint saves goes into a run of ours.

Every rank writes its own packs and one document, `shards@rank<r>`, at the same time; nothing is gathered on
one of them. The coordinator (the rank on which `finish` is called) commits one manifest for all, last. The
checkpoint exists from then on and no earlier: a save that fails, or a process that is killed, leaves none.

The claim and the place travel to the ranks with their plans, and what they have written to the coordinator
with the results that torch.distributed.checkpoint gathers; so no rank waits for another in the store.

Not promised: a copy of the state. `save` writes from live memory while training waits; `async_save` makes
its copy before. Shards on another device than the CPU take host memory once while they are written.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from unbroken.adapters.dcp import holding, sharding, shards
from unbroken.adapters.dcp.sharding import Place
from unbroken.adapters.dcp.steps import is_step, step_of
from unbroken.adapters.dcp.ticket import Ticket, check_usable, ticket_of
from unbroken.engine.fingerprint import fingerprint, versions
from unbroken.engine.options import STORING, StoringOptions, settings_of, takes_settings
from unbroken.errors import ConfigError, CorruptObject, ObjectMissing, SaveFailed, UnsupportedFormat
from unbroken.format.meta import ComponentFidelity, Meta
from unbroken.format.ranks import RankRecord
from unbroken.repo import fencing, names
from unbroken.repo.part_writer import PartWriter, record_of
from unbroken.repo.process import current
from unbroken.repo.roots import root_of
from unbroken.types import Fidelity, Step

if TYPE_CHECKING:
    from typing_extensions import Unpack

REASON = "torch.distributed.checkpoint"


def _token() -> str:
    return secrets.token_hex(names.TOKEN_DIGITS // 2)


class StorageWriter(_StorageWriter):
    """Saves to the run at `root`, on every rank with the same arguments.

    >>> import torch.distributed.checkpoint as dcp
    >>> import unbroken.dcp
    >>> writer = unbroken.dcp.StorageWriter("runs/fsdp", step=100)
    >>> dcp.save({"model": model.state_dict()}, storage_writer=writer)  # doctest: +SKIP

    `step` is the step that the checkpoint is of; torch's `checkpoint_id="100"` says the same. `metrics` stand
    in the list of checkpoints, and `best` keeps the best by one of them beside the last `keep_last`.
    Settings are overridden by `UNBROKEN_*` variables.

    The first save of a process takes the run for writing, and holds it until `close()` or the end of the
    process. A writer can be used for several saves, one at a time, or made anew for each.

    Raises ConfigError where a setting cannot be used. What goes wrong in a save is raised by
    torch.distributed.checkpoint on every rank, as its CheckpointException, which `except Exception` misses.
    """

    @takes_settings(known=STORING)
    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        step: int | None = None,
        job: str = "",
        metrics: Mapping[str, float] | None = None,
        **options: Unpack[StoringOptions],
    ) -> None:
        settings = settings_of("StorageWriter", root, options, job=job, known=STORING)
        self.settings = settings.overridden(os.environ)
        self.step = None if step is None else step_of(step)
        self.metrics = {name: float(value) for name, value in (metrics or {}).items()}
        self._ticket: Ticket | None = None
        """On the coordinator, its own, from the plan to the end of a save."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Begin another checkpoint; `checkpoint_id` is its step."""
        if checkpoint_id is not None:
            self.step = step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Check what this save is of.

        Raises:
            ConfigError: it has no step, or there are no collectives by which ranks know of each other.
        """
        self._ticket = None
        if not kwargs.get("use_collectives", True):
            raise ConfigError(
                "Without collectives no rank knows of the others, and nobody could commit for all.",
                hint="Leave out use_collectives=False.",
            )
        self._step()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leave the plan as it is."""
        check_usable(plan)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Take the run, and give every rank its ticket. On the coordinator only.

        Raises:
            ConfigError: the checkpoint has no step.
        """
        for plan in plans:
            check_usable(plan)
        run = holding.hold(self.settings)
        order, base = run.begin(Meta(step=self._step(), reason=REASON))
        tickets = [Ticket(rank, self.settings.job, run.claim, order, base) for rank in range(len(plans))]
        self._ticket = tickets[0]
        return [replace(plan, storage_data=ticket) for plan, ticket in zip(plans, tickets, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write what this rank has, durably. The last result is its record, for the coordinator.

        Raises:
            ConfigError: this rank finds another run than the coordinator.
        """
        ticket = ticket_of(plan)
        writer = self._part_writer(ticket)
        if ticket.base is not None:
            try:
                writer.build_on(ticket.base, {shards.label(ticket.rank)})
            except (CorruptObject, UnsupportedFormat, ObjectMissing):
                pass  # what it holds cannot be told, so all is written anew
        found = shards.collect(plan, planner, ticket.rank)
        record = record_of(
            writer.write([found.component], ticket.order.directory),
            ticket.order,
            rank=ticket.rank,
            job=ticket.job,
            owner=current(),
            time=time.time(),
            nbytes=found.nbytes,
        )
        results = [WriteResult(index, 0, place) for index, place in found.places.items()]
        future: Future[list[WriteResult]] = Future()
        future.set_result([*results, WriteResult(MetadataIndex(""), found.nbytes, record)])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit what all ranks have written. On the coordinator only.

        Raises:
            ConfigError: the checkpoint has no step, or this rank finds another run.
            SaveFailed: the run was given back before the save was over.
        """
        ticket, run = self._ticket, holding.held(self.settings)
        self._ticket = None
        if ticket is None or run is None:
            raise SaveFailed(
                "The run was given back before the save was over.", hint="Call close() after it."
            )
        places: dict[MetadataIndex, Place] = {}
        records: list[RankRecord] = []
        for result in (result for of_rank in results for result in of_rank):
            if isinstance(result.storage_data, RankRecord):
                records.append(result.storage_data)
            else:
                places[result.index] = result.storage_data
        metadata.storage_data, metadata.version = places, sharding.VERSION
        component = sharding.encode(metadata, len(records))
        (cut,) = self._part_writer(ticket).write([component], ticket.order.directory)
        records[0] = msgspec.structs.replace(
            records[0],
            documents={**records[0].documents, cut.file_name: cut.entry},
            blobs={**records[0].blobs, **cut.sizes},
        )
        run.finish(ticket.order, self._meta(records), records, self.settings)

    def close(self) -> None:
        """Give the run back, where this process holds it. The next save takes it again."""
        holding.let_go(self.settings)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this is a step."""
        return is_step(checkpoint_id)

    def _step(self) -> Step:
        if self.step is None:
            raise ConfigError(
                "The checkpoint has no step.", hint="Give StorageWriter(root, step=…), or checkpoint_id=…."
            )
        return Step(self.step)

    def _part_writer(self, ticket: Ticket) -> PartWriter:
        store = root_of(self.settings.root).store(ticket.job)
        if not fencing.is_here(store, ticket.claim):
            raise ConfigError(
                f"Rank {ticket.rank} finds at {self.settings.where} another run than the coordinator.",
                hint="Give all ranks one root, which all of them can reach.",
            )
        return PartWriter(
            store,
            ticket.claim,
            document_format=self.settings.document_format,
            compression=self.settings.codec,
            token=_token,
        )

    def _meta(self, records: Sequence[RankRecord]) -> Meta:
        owner = current()
        # JSON has no NaN; a metric without a number cannot be compared and is only mentioned.
        metrics = {name: value for name, value in self.metrics.items() if math.isfinite(value)}
        components = [sharding.COMPONENT, *(shards.label(record.rank) for record in records)]
        return Meta(
            job=self.settings.job,
            **owner.as_owner(),
            time=time.time(),
            step=self._step(),
            reason=REASON,
            metrics=metrics,
            worker_status=[
                {"rank": r.rank, "pid": r.pid, "host": r.host, "bytes": r.nbytes} for r in records
            ],
            versions=versions(),
            fingerprint=fingerprint(),
            fidelity={name: ComponentFidelity(Fidelity.EXACT) for name in components},
            bytes=sum(record.nbytes for record in records),
            notes=[f"metric {name} was {self.metrics[name]}" for name in self.metrics if name not in metrics],
        )
