"""`StorageReader`: torch.distributed.checkpoint loads from a run of ours, into any layout.

Which parts of what was saved a rank needs is for torch's planner to say. A rank reads only the shards in
which those lie. All of them are read and checked while the load is still being planned, and an error on one
rank then stops all: nothing is written into a live tensor before every rank has what it needs.

Not promised: memory. A rank holds what it needs once more until it is in place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from unbroken.adapters.dcp import sharding, shards
from unbroken.adapters.dcp.items import blob_of, bytes_of, tensor_of
from unbroken.adapters.dcp.rank_state import (
    own_rank,
    rank_key,
    ranks_of,
    tell_of_left,
    tell_of_missing,
    world_size,
)
from unbroken.adapters.dcp.sharding import COMPONENT, Place
from unbroken.adapters.dcp.steps import is_step, step_of
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, CorruptObject, NoUsableCheckpoint, Untrusted
from unbroken.format.document import Document
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of
from unbroken.repo.vouching import voucher
from unbroken.state.nodes import Opaque, Value
from unbroken.state.snapshot import Bytes
from unbroken.types import Digest, Sequence

SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Seen:
    """Which checkpoint a rank has found; all must find the same."""

    sequence: Sequence
    digest: Digest


@dataclass(slots=True)
class _Opened:
    """A checkpoint that is being loaded."""

    repository: Repository
    commit: Commit
    places: Mapping[MetadataIndex, Place]
    documents: dict[int, Document] = field(default_factory=dict)
    """Of the ranks whose shards are needed here."""
    contents: dict[tuple[int, int], Bytes] = field(default_factory=dict)
    """Rank and number of a blob -> its bytes."""

    def node(self, item: ReadItem) -> tuple[Value, Place]:
        index = item.storage_index
        place = self.places.get(index)
        if place is None:
            raise CorruptObject(f"{self.commit.directory} does not say where {index.fqn} stands.")
        document = self.documents.get(place.rank)
        if document is None:
            document = self.repository.document(self.commit, shards.label(place.rank))
            self.documents[place.rank] = document
        tensor = item.type != LoadItemType.BYTE_IO
        return shards.node_at(document.roots, index.fqn, place, tensor=tensor), place

    def fetch(self, plan: LoadPlan) -> None:
        """Read and check everything that a plan needs and that is not here yet."""
        wanted: dict[tuple[int, int], None] = {}
        for item in plan.items:
            node, place = self.node(item)
            if (number := blob_of(node)) >= 0 and (place.rank, number) not in self.contents:
                wanted[place.rank, number] = None
        try:
            refs = [self.documents[rank].blobs[number] for rank, number in wanted]
        except IndexError as error:
            raise CorruptObject(f"{self.commit.directory} refers to bytes that it does not have.") from error
        self.contents.update(zip(wanted, self.repository.contents(self.commit, refs), strict=True))

    def raw(self, node: Value, place: Place) -> Bytes | None:
        number = blob_of(node)
        return None if number < 0 else self.contents[place.rank, number]


class StorageReader(_StorageReader):
    """Loads from the run at `root` the newest checkpoint, or that of a step. On all ranks with equal arguments.

    >>> import torch.distributed.checkpoint as dcp
    >>> import unbroken.dcp
    >>> state = {"model": model.state_dict()}                                              # doctest: +SKIP
    >>> dcp.load(state, storage_reader=unbroken.dcp.StorageReader("runs/fsdp"))            # doctest: +SKIP

    Another number of ranks, another cut or a plain process load as well. Tensors and plain values need no
    trust; objects that torch has pickled come from a checkpoint that is signed with our key, or with `trust`.

    Raises ConfigError where a setting cannot be used. What goes wrong in a load is raised by
    torch.distributed.checkpoint on every rank, as its CheckpointException, which `except Exception` misses.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        step: int | None = None,
        job: str = "",
        trust: bool = False,
    ) -> None:
        self.settings = Settings(root=root, job=job, trust=trust).overridden(os.environ)
        self.step = None if step is None else step_of(step)
        self._opened: _Opened | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Begin another load; `checkpoint_id` is the step to load."""
        if checkpoint_id is not None:
            self.step = step_of(checkpoint_id)

    def read_metadata(self, *args: Any) -> Metadata:
        """Return how the checkpoint is cut. Looks anew for the newest one.

        Raises:
            ConfigError: there is no such run or step, or the checkpoint is no sharded one.
            NoUsableCheckpoint: the run holds none.
            CorruptObject: what it says is damaged.
        """
        repository = Repository.open(self.settings.root, self.settings.job)
        commit = self._chosen(repository)
        if repository.manifest(commit).document(COMPONENT) is None:
            raise ConfigError(
                f"The checkpoint of step {commit.step:,} in {self.settings.where} is none of unbroken.dcp.",
                hint="Go on with it in the script that wrote it.",
            )
        document = repository.document(commit, COMPONENT)
        metadata, _ = sharding.decode(document.roots, key=f"{commit.directory}/{COMPONENT}")
        self._opened = _Opened(repository, commit, metadata.storage_data)
        return metadata

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint; None where there is none yet."""
        if self.settings.job not in root_of(self.settings.root).jobs():
            return None
        commits = Repository.open(self.settings.root, self.settings.job).commits()
        return commits[0].step if commits else None

    def rank_state(
        self, state: dict[str, object], *, rank: int | None = None, of: int | None = None
    ) -> dict[str, object]:
        """Return `state` under the key of this rank, to be loaded beside a state that is cut.

        Empty where the checkpoint has nothing of this rank, which a warning tells: a key that is missing
        would stop all ranks. Then `state` stays as it is. Another warning, on rank 0, names what ranks have
        left that are not there any more; `of` is the rank whose state this one goes on with instead.

        Raises:
            ConfigError: the checkpoint has nothing of the rank `of`.
        """
        me = own_rank(rank)
        there = ranks_of(self.read_metadata().state_dict_metadata)
        step = self._checkpoint().commit.step
        if of is not None and own_rank(of) not in there:
            raise ConfigError(
                f"The checkpoint of step {step:,} has no state of rank {of}.",
                hint=f"It has states of: {', '.join(map(rank_key, there)) or 'no rank'}.",
            )
        if of is None and me == 0:
            tell_of_left(there, size=world_size(), step=step)
        wanted = me if of is None else of
        if wanted not in there:
            tell_of_missing(wanted, there, step=step)
            return {}
        return {rank_key(wanted): state}

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Nothing: what is needed came with the metadata."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Read and check what this rank needs.

        Raises:
            CorruptObject: a part of it is damaged or missing.
            Untrusted: it needs pickled parts that nobody vouches for.
        """
        opened = self._checkpoint()
        self._check_trust(opened, plan)
        opened.fetch(plan)
        return replace(plan, storage_data=_Seen(opened.commit.sequence, opened.commit.manifest_digest))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks load the same checkpoint. On the coordinator only.

        Raises:
            ConfigError: they do not, since one was committed or dropped meanwhile.
        """
        seen = {plan.storage_data for plan in plans}
        if len(seen) > 1:
            raise ConfigError(
                "The ranks do not see the same checkpoint: one was committed, or dropped, while they looked.",
                hint="Load again, or say which with step=….",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Bring what was read to where the planner wants it.

        Raises:
            ConfigError: a tensor has another shape than what was saved.
            CorruptObject: what is needed lies outside of what was saved.
            Untrusted: parts are pickled, and nobody whom this start trusts has signed them.
        """
        opened = self._checkpoint()
        self._check_trust(opened, plan)
        opened.fetch(plan)  # a planner may have changed its mind since
        for item in plan.items:
            node, place = opened.node(item)
            raw = opened.raw(node, place)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, bytes_of(node, raw))
                continue
            part = tensor_of(node, raw, item.storage_index.fqn)
            _copy(_narrowed(part, item), item, planner)
        self._opened = None
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this is a step."""
        return is_step(checkpoint_id)

    def _checkpoint(self) -> _Opened:
        if self._opened is None:
            self.read_metadata()
        assert self._opened is not None
        return self._opened

    def _chosen(self, repository: Repository) -> Commit:
        commits = repository.commits()
        if not commits:
            raise NoUsableCheckpoint(
                f"{self.settings.where} holds no checkpoint.", hint="Check the root, or save one first."
            )
        if self.step is None:
            return commits[0]
        found = next((commit for commit in commits if commit.step == self.step), None)
        if found is None:
            steps = sorted({commit.step for commit in commits})
            raise ConfigError(
                f"{self.settings.where} holds no checkpoint of step {self.step:,}.",
                hint=f"It has: {', '.join(map(str, steps))}.",
            )
        return found

    def _check_trust(self, opened: _Opened, plan: LoadPlan) -> None:
        if self.settings.trust is True:
            return
        pickled = [
            item.storage_index.fqn
            for item in plan.items
            if item.type == LoadItemType.BYTE_IO and isinstance(opened.node(item)[0], Opaque)
        ]
        if pickled and opened.repository.signature_valid(opened.commit) is not True:
            more = f" and {len(pickled) - SHOWN} more" if len(pickled) > SHOWN else ""
            said = voucher(opened.repository.manifest(opened.commit))
            raise Untrusted(
                f"The checkpoint of step {opened.commit.step:,} has pickled parts {said}:"
                f" {', '.join(pickled[:SHOWN])}{more}. Nothing was loaded.",
                hint=said.hint
                + (
                    ""
                    if self.settings.trust is False
                    else " A list of classes cannot bind torch's own loader."
                ),
                places=pickled,
            )


def _narrowed(part: torch.Tensor, item: ReadItem) -> torch.Tensor:
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        if offset < 0 or offset + length > part.size(dimension):
            raise CorruptObject(f"The part of {item.storage_index.fqn} that is needed leaves what was saved.")
        part = part.narrow(dimension, offset, length)
    return part


def _copy(part: torch.Tensor, item: ReadItem, planner: LoadPlanner) -> None:
    target = planner.resolve_tensor(item).detach()
    if target.size() != part.size():
        raise ConfigError(
            f"{item.dest_index.fqn} has {list(target.size())} where {list(part.size())} was saved.",
            hint="Build the model as in the run that was saved.",
        )
    target.copy_(part)
    planner.commit_tensor(item, target)
